"""Bytes of a file -> a notebook as plain data, whatever platform wrote it; or Unreadable, with the reason in words.

The result is a dict with `cells`; each cell has `cell_type`, `source`, `id` (str) and `metadata` (dict, of which only
nbgrader's entries are kept). Outputs are dropped: nothing of them is graded.
"""

from __future__ import annotations

import codecs
import json
import re

from grading.intake.sniff import archive_or_binary, text_kind

MAX_BYTES = 20 << 20
MAX_CELLS = 5_000
MAX_ID = 200
DECODER = json.JSONDecoder(strict=False, parse_int=lambda digits: int(digits) if len(digits) < 20 else 0)
SURROGATE = re.compile("[\ud800-\udfff]")
EMPTY = "an empty file"


class Unreadable(ValueError):
    """A submission that cannot be graded; the message says why, in words."""


def read(data: bytes) -> tuple[dict, list[str]]:
    """(notebook, flags of what was repaired). Raises Unreadable."""
    if len(data) > MAX_BYTES:
        raise Unreadable(f"too large: {len(data) / (1 << 20):.1f} MiB, the limit is {MAX_BYTES >> 20} MiB")
    if not data.strip(b"\0 \t\r\n"):
        raise Unreadable(EMPTY)
    if kind := archive_or_binary(data):
        raise Unreadable(f"not a notebook: {kind}")
    text, flags = _decoded(data)
    return _notebook(_parsed(text, flags), flags), flags


# --- text ------------------------------------------------------------------------------------------------------------


def _decoded(data: bytes) -> tuple[str, list[str]]:
    for mark, name in ((codecs.BOM_UTF32_LE, "utf-32"), (codecs.BOM_UTF32_BE, "utf-32")):
        if data.startswith(mark):
            return data.decode(name, "replace"), [f"encoding:{name}"]
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data.decode("utf-16", "replace"), ["encoding:utf-16"]
    for order in ("le", "be"):  # a JSON text without a mark begins with an ASCII character, so with one zero byte
        if data[:4].count(0) == 2 and data[1 if order == "le" else 0] == 0:
            return data.decode(f"utf-16-{order}", "replace"), ["encoding:utf-16"]
    try:
        return data.decode("utf-8-sig"), []
    except UnicodeDecodeError:
        pass
    damaged = data.decode("utf-8-sig", "replace")
    wide = sum(1 for char in damaged if char > "\x7f" and char != "\ufffd")
    bad = damaged.count("\ufffd")
    try:
        # Chinese in GBK is hardly ever valid UTF-8, so a UTF-8 file with a few bad bytes has far more good than bad.
        if bad * 4 >= wide:
            return data.decode("gb18030"), ["encoding:gb18030"]
    except UnicodeDecodeError:
        pass
    if data.count(0) > len(data) // 20 or bad > len(damaged) // 10:
        raise Unreadable("not a notebook: a binary file")
    return damaged, ["encoding:damaged"]


def _parsed(text: str, flags: list[str]):
    text = text.strip("\ufeff\0 \t\r\n")
    if not text:
        raise Unreadable(EMPTY)
    if kind := text_kind(text) if not text.startswith(("{", "[", '"')) else "":
        raise Unreadable(_worded(kind))
    try:
        value, end = DECODER.raw_decode(text)
    except json.JSONDecodeError as error:
        raise Unreadable(_json_problem(text, error)) from None
    except RecursionError:
        raise Unreadable("JSON that is nested too deep") from None
    if text[end:].strip("\0 \t\r\n"):
        flags.append("trailing_garbage")
    return value


def _worded(kind: str) -> str:
    return kind if kind.startswith("a notebook") or "notebook" in kind else f"not a notebook: {kind}"


def _json_problem(text: str, error: json.JSONDecodeError) -> str:
    if kind := text_kind(text):
        return _worded(kind)
    if text[0] != "{":
        return "not a notebook: a text file"
    if error.pos >= len(text) - 1 or error.msg.startswith("Unterminated string"):
        return f"a truncated file: it breaks off after {len(text)} characters"
    return f"damaged JSON: {error.msg}, line {error.lineno}, column {error.colno}"


# --- structure -------------------------------------------------------------------------------------------------------


def _notebook(value, flags: list[str]) -> dict:
    if isinstance(value, str):  # JSON in a JSON string: saved from a web request
        try:
            value = DECODER.decode(value.strip())
            flags.append("unwrapped")
        except (json.JSONDecodeError, RecursionError):
            raise Unreadable("JSON, but not a notebook: a string") from None
    if isinstance(value, dict) and "cells" not in value and isinstance(value.get("content"), dict):
        value = value["content"]  # what Jupyter's contents API answers
        flags.append("unwrapped")
    if not isinstance(value, dict):
        kind = {list: "a list", str: "a string", bool: "a truth value", type(None): "null"}.get(type(value), "a number")
        raise Unreadable(f"JSON, but not a notebook: {kind}")
    raw = value.get("cells")
    if not isinstance(raw, list) and isinstance(value.get("worksheets"), list):
        sheets = [sheet for sheet in value["worksheets"] if isinstance(sheet, dict)]
        raw = [cell for sheet in sheets if isinstance(sheet.get("cells"), list) for cell in sheet["cells"]]
        flags.append("nbformat:3")
    if not isinstance(raw, list):
        keys = ", ".join(sorted(key for key in value if isinstance(key, str))[:5])
        raise Unreadable(f"JSON, but not a notebook: an object without cells (it has {SURROGATE.sub('?', keys)[:100]})")
    if len(raw) > MAX_CELLS:
        raise Unreadable(f"too many cells: {len(raw)}, the limit is {MAX_CELLS}")
    if not raw:
        raise Unreadable("a notebook without cells")
    cells = [_cell(cell, flags) for cell in raw if isinstance(cell, dict)]
    if not any("cell_type" in cell or "source" in cell for cell in raw if isinstance(cell, dict)):
        raise Unreadable("JSON, but not a notebook: its cells are not cells")
    if len(cells) < len(raw):
        flags.append(f"cells_skipped:{len(raw) - len(cells)}")
    flags[:] = list(dict.fromkeys(flags))
    return {"cells": cells}


def _cell(raw: dict, flags: list[str]) -> dict:
    kind = raw.get("cell_type")
    if not isinstance(kind, str):
        kind = "code" if raw.keys() & {"outputs", "execution_count", "input"} else "raw"
    kind = kind.strip().lower()
    metadata = raw.get("metadata") if isinstance(raw.get("metadata"), dict) else {}
    ids = [value for value in (raw.get("id"), metadata.get("id")) if isinstance(value, str) and value]
    text = _text(raw.get("source", raw.get("input")), flags)
    nbgrader = metadata.get("nbgrader")
    kept = {}
    if isinstance(nbgrader, dict):
        simple = {key: value for key, value in nbgrader.items() if isinstance(value, str | int | float | bool)}
        kept["nbgrader"] = {key: _clean_id(value) if isinstance(value, str) else value for key, value in simple.items()}
    return {"cell_type": kind, "source": text, "metadata": kept, "id": _clean_id(ids[0]) if ids else ""}


def _clean_id(text: str) -> str:
    return SURROGATE.sub("\ufffd", text[:MAX_ID])


def _text(source, flags: list[str]) -> str:
    if isinstance(source, list):
        lines = [line for line in source if isinstance(line, str)]
        if len(lines) < len(source):
            flags.append("source_repaired")
        bare = len(lines) > 1 and not any("\n" in line for line in lines)
        source = ("\n" if bare else "").join(lines)
        if bare:
            flags.append("source_lines_joined")
    elif not isinstance(source, str):
        if source is not None:
            flags.append("source_repaired")
        source = ""
    source = source.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    if "\0" in source:
        flags.append("nul_removed")
        source = source.replace("\0", "")
    if SURROGATE.search(source):
        flags.append("lone_surrogates")
        source = SURROGATE.sub("\ufffd", source)
    return source
