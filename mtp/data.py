"""Training text: the standard library's own source files, as bytes.

Every Python brings about 8 MB of it, so nothing is downloaded. It differs from version to version; evaluation
prompts therefore are a committed file (see prompts.py), and a checkpoint records the version it was trained on.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import torch
from torch import Tensor

END_OF_FILE = 0
"""The byte that ends each file in the training text; usable as `eos`."""

SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "encodings", "idlelib", "lib2to3", "pydoc_data", "site-packages", "__pycache__"}
)
HELD_OUT_SHARE = 16  # one file in so many


def encode(text: str) -> list[int]:
    """Text to ids below 128, one an ASCII character. Anything else becomes '?': the vocabulary is 7-bit."""
    return list(text.encode("ascii", errors="replace"))


def check_ascii(text: str, what: str) -> None:
    """Raise ValueError that calls the text `what` and names the first character that `encode` would replace."""
    for place, character in enumerate(text, start=1):
        if not character.isascii():
            raise ValueError(
                f"{what}: character {place} is {character!r}; the model reads ASCII source text only, where this would "
                "become '?'"
            )


def decode_text(ids) -> str:
    """Ids back to text; inverse of `encode` on ASCII."""
    return bytes(int(i) for i in ids).decode("ascii", errors="replace")


def is_held_out(relative_path: str) -> bool:
    """Whether a file belongs to the held-out part: decided by its path alone, so the same on every machine."""
    digest = hashlib.sha256(relative_path.encode()).digest()
    return digest[0] % HELD_OUT_SHARE == 0


def source_files(root: Path | None = None) -> list[Path]:
    """The .py files of the standard library (or of `root`), sorted, without tests and tables of codes."""
    root = Path(root or sysconfig.get_paths()["stdlib"])
    files = [
        path for path in root.rglob("*.py")
        if not SKIPPED_FOLDERS.intersection(path.relative_to(root).parts)
    ]  # fmt: skip
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def load_split(root: Path | None = None) -> tuple[Tensor, Tensor]:
    """Training and held-out text, each a uint8 tensor (bytes,).

    Raises FileNotFoundError where Python has no source files (some embedded builds keep the library in a zip).
    """
    root = Path(root or sysconfig.get_paths()["stdlib"])
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    for path in source_files(root):
        text = path.read_text(encoding="utf-8", errors="replace")
        held_out = is_held_out(path.relative_to(root).as_posix())
        parts[held_out].append(bytes(encode(text)) + bytes([END_OF_FILE]))
    if not parts[0]:
        raise FileNotFoundError(f"no .py files under {root}: pass the folder of a Python's standard library as root=")
    train, held_out = (torch.frombuffer(bytearray(b"".join(part)), dtype=torch.uint8) for part in parts)
    return train, held_out


def sample_batch(text: Tensor, batch: int, length: int, generator: torch.Generator) -> Tensor:
    """Random windows of a text: (batch, length) int64."""
    starts = torch.randint(len(text) - length + 1, (batch,), generator=generator)
    return text[starts[:, None] + torch.arange(length)].long()
