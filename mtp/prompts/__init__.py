"""The committed evaluation prompts (CPython text, PSF-2.0, see NOTICE.txt): none of it was trained on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from ..data import encode

KINDS = ("code", "prose", "repetitive")
FILE = Path(__file__).parent / "prompts.jsonl"


@dataclass(frozen=True)
class Prompt:
    """One evaluation prompt and where its text comes from."""

    kind: str
    source: str
    text: str

    @property
    def ids(self) -> list[int]:
        return encode(self.text)


def load_prompts(kind: str = "code", limit: int | None = None) -> list[Prompt]:
    """The first `limit` prompts of a kind. Raises ValueError for an unknown kind or a limit out of range."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, got {kind!r}")
    with open(FILE, encoding="ascii") as file:
        prompts = [prompt for line in file if (prompt := Prompt(**json.loads(line))).kind == kind]
    if limit is not None and not 1 <= limit <= len(prompts):
        raise ValueError(f"limit must lie in 1 … {len(prompts)}, the number of {kind} prompts, got {limit}")
    return prompts[:limit]
