"""This package as one file, for a notebook that is opened where there is no copy of the repository."""

from __future__ import annotations

import zipfile
from pathlib import Path

from .options import check_output

PACKAGE = Path(__file__).parent


def pack(out: str | Path) -> list[str]:
    """Write a zip of all that git would keep of this package, checkpoints included; returns the members' names.

    The same files give the same bytes. Raises OSError where `out` cannot be written.
    """
    out = Path(out)
    files = sorted(
        path for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".partial"
    )  # fmt: skip
    names = [path.relative_to(PACKAGE.parent).as_posix() for path in files]
    partial = out.with_name(out.name + ".partial")
    with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, name in zip(files, names, strict=True):
            archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    partial.replace(out)
    return names


def add_pack_command(commands) -> None:
    """Registers `pack` with the command line's subparsers."""
    command = commands.add_parser("pack", help="write mtp-lab.zip, the one file that a lab needs elsewhere")
    command.add_argument("--out", type=Path, default=Path("mtp-lab.zip"), metavar="FILE")
    command.set_defaults(run=_pack)


def _pack(arguments) -> int:
    check_output(arguments.out, "--out")
    names = pack(arguments.out)
    print(f"wrote {arguments.out}: {len(names)} files, {arguments.out.stat().st_size / 2**20:.1f} MiB")
    return 0
