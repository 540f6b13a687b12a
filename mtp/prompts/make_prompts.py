"""How the committed evaluation prompts were made: `python -m mtp.prompts.make_prompts`.

All text is CPython's (PSF-2.0, see NOTICE.txt), from files that the training text leaves out: code from the held-out
part of the split, prose from the language reference that `pydoc` shows, repetitive text from tables of code points.
The prompts are committed because the standard library differs from version to version; rerunning this on another
Python gives other prompts.
"""

from __future__ import annotations

import json
import platform
import random
import re
import sysconfig
from pathlib import Path

from ..data import decode_text, encode, is_held_out, source_files

COUNTS = {"code": 200, "prose": 60, "repetitive": 60}
LENGTHS = range(64, 193)  # characters
HERE = Path(__file__).parent


def candidates(kind: str, root: Path) -> list[tuple[str, str]]:
    """(path, text) of the files that prompts of a kind may come from."""
    if kind == "code":
        paths = [path for path in source_files(root) if is_held_out(path.relative_to(root).as_posix())]
    elif kind == "prose":
        paths = [root / "pydoc_data" / "topics.py"]
    else:
        paths = sorted((root / "encodings").glob("cp*.py"))
    texts = [(path.relative_to(root).as_posix(), decode_text(encode(path.read_text("utf-8")))) for path in paths]
    if kind == "prose":  # the topics are one literal: read it, and keep paragraphs that are sentences
        topics = eval(texts[0][1].split("=", 1)[1], {"__builtins__": {}})  # a dict of str to str
        paragraphs = [p for topic in topics.values() for p in re.split(r"\n\s*\n", topic) if p.count(". ") >= 2]
        return [(texts[0][0], re.sub(r"\s*\n\s*", "\n", p.strip())) for p in paragraphs if len(p) > LENGTHS[-1]]
    return texts


def main() -> None:
    root = Path(sysconfig.get_paths()["stdlib"])
    chooser = random.Random(35)
    with open(HERE / "prompts.jsonl", "w", encoding="ascii") as file:
        for kind, count in COUNTS.items():
            files, seen = candidates(kind, root), set()
            while len(seen) < count:
                path, text = chooser.choices(files, weights=[len(text) for _, text in files])[0]
                # Prose starts with its paragraph, code and tables with a line.
                begins = [0] if kind == "prose" else [match.end() for match in re.finditer(r"\n", text)]
                begin = chooser.choice(begins)
                prompt = text[begin : begin + chooser.choice(LENGTHS)]
                if len(prompt) < LENGTHS[0] or len(prompt.split()) < 6 or (path, begin) in seen or "?" * 3 in prompt:
                    continue
                if kind == "prose" and any(prompt[:64] == known for known in seen):
                    continue
                seen.add(prompt[:64] if kind == "prose" else (path, begin))
                line = text.count("\n", 0, begin) + 1
                where = path if kind == "prose" else f"{path}:{line}"
                entry = {"kind": kind, "source": f"CPython {platform.python_version()} Lib/{where}", "text": prompt}
                file.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    main()
