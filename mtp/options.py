"""What the commands share: options, and the checks that are made before the work rather than after it."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

LOWEST = {
    "prompts": 1, "batch": 1, "repeats": 1, "max_new_tokens": 1, "steps": 1, "layers": 1, "modules": 0, "length": 1,
    "max_batch": 1, "warmup": 0,
}  # fmt: skip
"""Options that are counts, and the smallest value that makes sense."""

SEEDS = 2**63 - 2**32
"""Seeds lie below: torch takes 63 bits, and `bench` counts on from a seed, one a group of prompts."""


def add_threads(command: argparse.ArgumentParser) -> None:
    """Add --threads, for `use_threads`.

    One by default: on an idle machine two save a third of training's time, but threads wait for each other at every
    operation, and on a machine that does something else as well that made the same training five times slower.
    """
    command.add_argument("--threads", type=int, default=1, help="torch threads; two on a busy machine are far slower")


def use_threads(arguments: argparse.Namespace) -> None:
    """Let torch compute with as many threads as --threads says."""
    import torch

    torch.set_num_threads(arguments.threads)


def check_numbers(arguments: argparse.Namespace) -> None:
    """Check whichever whole numbers a command has: ValueError names the option, its limits and the value."""
    limits: dict[str, tuple[int, int | None]] = {name: (low, None) for name, low in LOWEST.items()}
    limits |= {"port": (0, 65535), "seed": (0, SEEDS - 1), "threads": (1, os.cpu_count() or 1)}
    if hasattr(arguments, "k"):
        from .model import LOOK_AHEAD

        limits["k"] = (0, LOOK_AHEAD)
    for name, (low, high) in limits.items():
        given = getattr(arguments, name, None)
        for value in given if isinstance(given, list) else [given]:
            if value is not None and (value < low or (high is not None and value > high)):
                wanted = f"at least {low}" if high is None else f"from {low} to {high}"
                more = ", the cores of this machine" if name == "threads" else ""
                raise ValueError(f"--{name.replace('_', '-')} must be {wanted}{more}, got {value}")


def check_device(name: str) -> None:
    """Raise ValueError unless torch can compute on a device, such as "cuda"."""
    import torch

    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError) as error:  # the latter is what a build without CUDA raises
        reason = str(error).partition("\n")[0]
        raise ValueError(f"--device {name} cannot be used here ({reason}); --device cpu can") from error


def check_output(path: Path, option: str) -> None:
    """Raise ValueError, naming the option, unless a file can be written at `path`.

    The folders above it are made; the file is not, and one that is there stays as it is.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise ValueError(f"{option} {path} is a folder: name a file in it")
        if not path.exists():
            path.open("xb").close()  # only this tells: as root, or on /proc, permissions say nothing
            path.unlink()
        elif path.is_file():
            path.open("ab").close()
        else:  # a device or a pipe would be replaced, or end when it is closed here
            raise ValueError(f"{option} {path} is no regular file: name another one")
    except OSError as error:
        where = "" if error.filename in (None, str(path)) else f"{error.filename}: "
        raise ValueError(f"{option} {path} cannot be written ({where}{error.strerror}): name another place") from error


def said(error: Exception) -> str:
    """An error as one line: of the system's, the file and the reason without the number."""
    text = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
    return text.strip().partition("\n")[0]
