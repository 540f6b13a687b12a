"""The opening note: badges when the course has a public address, how to open by upload when it has none.

The address is `[tool.course] repository` in pyproject.toml; nothing else knows it.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from urllib.parse import urlsplit

from grading.chapter import ROOT

BLOCK = re.compile(r"<!-- open:begin -->.*?<!-- open:end -->", re.DOTALL)
COLAB = "https://colab.research.google.com"
MODELSCOPE = "https://modelscope.cn/my/mynotebook"


def repository(root: Path = ROOT) -> str:
    """The course's public address, '' while it has none. Raises ValueError for an address badges cannot be made of."""
    address = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["tool"]["course"]["repository"].rstrip("/")
    if address and not re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+", address):
        raise ValueError(
            f"pyproject.toml, tool.course.repository: {address!r} is not https://github.com/<owner>/<name>"
        )
    return address


def opening(path: str, address: str, beside: str = "") -> str:
    """Markdown that says how to open the notebook at `path` (relative to the repository's root).

    beside: a file that it needs where it is opened by upload.
    """
    if address:
        blob = f"{urlsplit(address).path}/blob/main/{path}"
        return (
            f"[![在 Colab 打开]({COLAB}/assets/colab-badge.svg)]({COLAB}/github{blob})\n"
            "[![在 ModelScope 打开](https://img.shields.io/badge/Open%20In-ModelScope-624aff)]"
            f"({MODELSCOPE})（在免费实例的终端里 `git clone {address}`，再打开 `{path}`）"
        )
    name = Path(path).name
    files = f"`{name}` 与 `{beside}` 两个文件" if beside else f"`{name}` 这一个文件"
    then = f"；运行第一格时按提示选择 `{beside}`" if beside else ""
    return (
        f"**在云端打开**：只要 {files}，不需要 GPU。下载到本地之后——\n\n"
        f"- [Colab]({COLAB}/#create=true)：菜单“文件 → 上传笔记本”{then}；\n"
        f"- [ModelScope 免费实例]({MODELSCOPE})：启动 CPU 环境，把文件拖进左侧文件栏。"
    )


def fill_opening(text: str, path: str, root: Path = ROOT, beside: str = "") -> str:
    """`text` with the block between the open:begin and open:end comments rewritten; unchanged if there is none."""
    note = f"<!-- open:begin -->\n{opening(path, repository(root), beside)}\n<!-- open:end -->"
    return BLOCK.sub(lambda _: note, text)


def refresh_readme(root: Path = ROOT) -> bool:
    """Rewrites README.md's opening note; returns whether it moved."""
    readme = root / "README.md"
    before = readme.read_text("utf-8")
    names = sorted(path.name for path in (root / "release").glob("*") if path.is_dir())
    after = fill_opening(before, f"release/{names[0]}/{names[0]}.ipynb", root) if names else before
    if after != before:
        readme.write_text(after, "utf-8")
    return after != before
