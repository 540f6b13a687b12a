"""What a file that is no notebook is instead, in words that tell a learner what to hand in."""

from __future__ import annotations

import ast
import re
import warnings

MAGIC = (
    (b"%PDF", "a PDF document"),
    (b"Rar!", "a RAR archive, which is not opened; a zip archive is"),
    (b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive, which is not opened; a zip archive is"),
    (b"\x1f\x8b", "a gzip archive, which is not opened; a zip archive is"),
    (b"BZh", "a bzip2 archive, which is not opened; a zip archive is"),
    (b"\xfd7zXZ", "an xz archive, which is not opened; a zip archive is"),
    (b"PK\x05\x06", "an empty zip archive"),
    (b"\xd0\xcf\x11\xe0", "an old Word or Excel document"),
    (b"{\\rtf", "a rich-text document"),
    (b"\x89PNG", "an image"),
    (b"\xff\xd8\xff", "an image"),
    (b"GIF8", "an image"),
    (b"SQLite format 3", "a database"),
    (b"\x7fELF", "a program"),
    (b"MZ", "a program"),
)
CONFLICT = re.compile(r"^(<<<<<<< |=======$|>>>>>>> )", re.M)
SIGN_IN = re.compile(r"sign.?in|log.?in|password|passwd|登录|登陆|密码|验证码|single.sign", re.I)
EXPORT = re.compile(r"jp-Notebook|nbconvert|class=\"?input_area|jp-Cell", re.I)
CODE = re.compile(r"^(import |from \w[\w.]* import |def \w+\(|class \w+|@\w+|# In\[|# %%|#!.*python)", re.M)


def archive_or_binary(data: bytes) -> str:
    """What a file is by its first bytes, in words; '' when it may be text."""
    for magic, words in MAGIC:
        if data.startswith(magic) and (magic != b"MZ" or b"\0" in data[:200]):
            return words
    if data.startswith(b"PK\x03\x04"):
        if b"[Content_Types].xml" in data or b"word/" in data[:2000]:
            return "a Word, Excel or PowerPoint document"
        return "a zip archive"
    if data[257:262] == b"ustar":
        return "a tar archive, which is not opened; a zip archive is"
    return ""


def text_kind(text: str) -> str:
    """What a text that is not JSON is, in words; '' when nothing is known of it."""
    start = text[:2000].lstrip().lower()
    if start.startswith(("<!doctype html", "<html", "<head", "<script", "<!--")) or "<html" in start:
        if EXPORT.search(text[:2_000_000]):
            return "an HTML export of a notebook; the .ipynb file itself is needed"
        if SIGN_IN.search(text[:200_000]):
            return "an HTML page (a sign-in page) saved in place of the notebook"
        return "an HTML page saved in place of the notebook"
    if start.startswith("<"):
        return "an HTML or XML page, not a notebook"
    if start.startswith("version https://git-lfs"):
        return "a Git LFS pointer: the notebook itself was not downloaded"
    if start.startswith(("http://", "https://", "[internetshortcut]")):
        return "a link to a notebook, not the notebook itself"
    if len(CONFLICT.findall(text)) >= 2:
        return "a notebook with unresolved merge conflict markers (<<<<<<< … >>>>>>>)"
    if not start.startswith(("{", "[", '"')):
        if CODE.search(text) and _is_python(text):
            return "a Python script, not a notebook"
        if start.startswith(("---", "# ", "## ", "```")):
            return "a Markdown or text file, not a notebook"
    return ""


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings(action="ignore"):
            ast.parse(text[:200_000])
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return len(CODE.findall(text)) >= 3
    return True
