"""Bytes become a notebook whatever platform wrote them, or the reason why not is said in words."""

import json

import pytest
from intake_cases import RELEASE, data, notebook, own, zipped

from grading.intake.reading import MAX_CELLS, Unreadable, read

CODE = {"cell_type": "code", "metadata": {}, "source": "x = 1  # 变量", "outputs": [], "execution_count": None}


def text(*cells, **more) -> str:
    return json.dumps({"cells": list(cells or [CODE]), "metadata": {}, "nbformat": 4} | more, ensure_ascii=False)


def cells(made: str | bytes) -> list[dict]:
    return read(made.encode() if isinstance(made, str) else made)[0]["cells"]


def flags(made: str | bytes) -> list[str]:
    return read(made.encode() if isinstance(made, str) else made)[1]


def reason(made: bytes) -> str:
    with pytest.raises(Unreadable) as caught:
        read(made)
    return str(caught.value)


def test_a_plain_notebook_needs_no_repair():
    made, repairs = read(data())
    assert repairs == []
    assert [cell["source"] for cell in made["cells"]] == [cell["source"] for cell in notebook()["cells"]]
    assert made["cells"][4]["metadata"]["nbgrader"]["grade_id"] == "the_box"
    assert made["cells"][4]["id"] == "box"


@pytest.mark.parametrize(
    "made, words",
    [
        (b"", "empty file"),
        (b"  \r\n\0\0", "empty file"),
        (b"\xef\xbb\xbf", "empty file"),
        (b"<!DOCTYPE html><html><body>Sign in to continue</body></html>", "sign-in page"),
        ("<html><body>请登录</body></html>".encode("gb18030"), "sign-in page"),
        (b"\n<html><body>404</body></html>", "HTML page saved in place"),
        (b"<html><body class='jp-Notebook'></body></html>", "HTML export"),
        (b"<?xml version='1.0'?><a/>", "XML"),
        (data()[: len(data()) // 2], "truncated"),
        (data()[:-1], "truncated"),
        (b'{"cells": [{"cell_type": "code"} {]}', "damaged JSON"),
        (b"[]", "a list"),
        (b"3", "a number"),
        (b"null", "null"),
        (b'"text"', "a string"),
        (b'{"name": "package", "version": 1}', "an object without cells"),
        (b'{"cells": [1, 2]}', "its cells are not cells"),
        (b'{"cells": []}', "without cells"),
        (zipped({"x.txt": b"1"}), "zip archive"),
        (zipped({"[Content_Types].xml": b"", "word/document.xml": b""}), "Word"),
        (b"%PDF-1.7 ...", "PDF"),
        (b"Rar!\x1a\x07\x00", "RAR"),
        (b"7z\xbc\xaf\x27\x1c" + bytes(30), "7-Zip"),
        (b"\x1f\x8b\x08" + bytes(30), "gzip"),
        (b"\x89PNG\r\n", "image"),
        (b"\xd0\xcf\x11\xe0" + bytes(30), "old Word"),
        (bytes(range(256)) * 20, "binary"),
        (b"import torch\n\n\nclass Box:\n    pass\n", "Python script"),
        (b"# %%\nimport torch\n!pip install x\ndef f():\n    pass\nclass A: pass\n", "Python script"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS"),
        (b"https://colab.research.google.com/drive/1", "a link to a notebook"),
        ("我的作业在另一个文件里".encode(), "a text file"),
        (b"[" * 100_000, "nested too deep"),
        (b'{"cells": ' * 20_000, "nested too deep"),
    ],
)
def test_what_is_no_notebook_is_named(made, words):
    assert words in reason(made)


def test_merge_conflict_is_named():
    lines = json.dumps(RELEASE, indent=1).split("\n")
    lines[5:5] = ["<<<<<<< HEAD", lines[5], "=======", lines[5], ">>>>>>> theirs"]
    assert "merge conflict" in reason("\n".join(lines).encode())
    quoted = text(CODE | {"source": "'''\n<<<<<<< HEAD\n=======\n>>>>>>> x\n'''"})
    assert len(cells(quoted)) == 1


@pytest.mark.parametrize(
    "encoding, prefix, flag",
    [
        ("utf-8", b"\xef\xbb\xbf", None),
        ("utf-16", b"", "encoding:utf-16"),
        ("utf-16-le", b"", "encoding:utf-16"),
        ("utf-16-be", b"\xfe\xff", "encoding:utf-16"),
        ("utf-32", b"", "encoding:utf-32"),
        ("gb18030", b"", "encoding:gb18030"),
        ("gbk", b"", "encoding:gb18030"),
    ],
)
def test_encodings(encoding, prefix, flag):
    made = prefix + json.dumps(notebook(), ensure_ascii=False).replace("numbers", "数字串").encode(encoding)
    got, repairs = read(made)
    assert repairs == ([flag] if flag else [])
    assert "TODO 1：the first 数字串" in got["cells"][4]["source"] or "：the first" in got["cells"][4]["source"]
    assert "数字串" in got["cells"][4]["source"]


def test_a_few_damaged_bytes_do_not_make_utf8_gbk():
    made = text(CODE | {"source": "# 这是一段不短的中文注释，编码是 UTF-8\nx = 1"}).encode()
    damaged = made.replace("注释".encode(), b"\xff" + "注释".encode())
    assert flags(damaged) == ["encoding:damaged"]
    assert cells(damaged)[0]["source"].endswith("\nx = 1") and "中文" in cells(damaged)[0]["source"]


@pytest.mark.parametrize("tail", ["\n\n", "\0\0\0", "}", "\n]garbage", "{}", "</html>"])
def test_what_follows_the_json_is_dropped(tail):
    made = text() + tail
    assert len(cells(made)) == 1
    assert flags(made) == ([] if not tail.strip("\n\0") else ["trailing_garbage"])


def test_format_3_with_worksheets():
    old = {
        "nbformat": 3,
        "worksheets": [
            {
                "cells": [
                    {"cell_type": "heading", "level": 1, "source": ["A title"]},
                    {"cell_type": "code", "input": ["x = 1\n", "y = 2"], "language": "python", "outputs": []},
                ]
            },
            {"cells": [{"cell_type": "markdown", "source": "text"}]},
        ],
    }
    got, repairs = read(json.dumps(old).encode())
    assert [(cell["cell_type"], cell["source"]) for cell in got["cells"]] == [
        ("heading", "A title"),
        ("code", "x = 1\ny = 2"),
        ("markdown", "text"),
    ]
    assert repairs == ["nbformat:3"]


def test_sources_of_every_kind():
    made = text(
        CODE | {"source": ["a\n", "b"]},
        CODE | {"source": ["a", "b"]},
        CODE | {"source": "a\r\nb\rc"},
        CODE | {"source": None},
        CODE | {"source": {"a": 1}},
        CODE | {"source": ["a\n", 7, "b"]},
        {"cell_type": "code"},
    )
    assert [cell["source"] for cell in cells(made)] == ["a\nb", "a\nb", "a\nb\nc", "", "", "a\nb", ""]
    assert set(flags(made)) == {"source_lines_joined", "source_repaired"}


def test_cells_that_are_none_are_skipped_and_missing_parts_filled_in():
    made = text(
        CODE, 7, None, {"outputs": [], "source": "x"}, {"source": "y"}, CODE | {"cell_type": "Code", "metadata": []}
    )
    assert [cell["cell_type"] for cell in cells(made)] == ["code", "code", "raw", "code"]
    assert all(isinstance(cell["metadata"], dict) and isinstance(cell["id"], str) for cell in cells(made))
    assert flags(made) == ["cells_skipped:2"]


def test_ids_from_the_metadata_and_of_odd_types():
    made = text(CODE | {"metadata": {"id": "AbC1"}}, CODE | {"id": "top"}, CODE | {"id": 7}, CODE | {"id": "top"})
    assert [cell["id"] for cell in cells(made)] == ["AbC1", "top", "", "top"]


def test_odd_nbgrader_metadata_are_plain_or_gone():
    made = text(
        CODE | {"metadata": {"nbgrader": [1]}}, CODE | {"metadata": {"nbgrader": {"grade_id": {"a": 1}, "grade": 1}}}
    )
    assert [cell["metadata"] for cell in cells(made)] == [{}, {"nbgrader": {"grade": 1}}]


def test_numbers_and_characters_that_break_other_readers():
    huge = text().replace('"nbformat": 4', '"nbformat": ' + "9" * 5000 + ', "a": NaN, "b": 1e999')
    assert len(cells(huge)) == 1
    lone = text(CODE | {"source": "x"}).replace('"x"', '"\\ud83d x"')
    assert cells(lone)[0]["source"] == "\ufffd x" and flags(lone) == ["lone_surrogates"]
    paired = text(CODE | {"source": "x"}).replace('"x"', '"\\ud83d\\ude00"')
    assert cells(paired)[0]["source"] == "😀" and flags(paired) == []
    nul = text(CODE | {"source": "x"}).replace('"x"', '"\\u0000x"')
    assert cells(nul)[0]["source"] == "x" and flags(nul) == ["nul_removed"]
    raw_newline = text(CODE | {"source": "a@b"}).replace("@", "\n")
    assert cells(raw_newline)[0]["source"] == "a\nb"


def test_wrapped_notebooks_are_unwrapped():
    assert flags(json.dumps(text())) == ["unwrapped"]
    assert flags(json.dumps({"type": "notebook", "name": "x", "content": json.loads(text())})) == ["unwrapped"]


def test_bounds():
    assert f"the limit is {MAX_CELLS}" in reason(text(*[{"cell_type": "raw"}] * (MAX_CELLS + 1)).encode())
    assert "too large" in reason(b" " * (21 << 20))


def test_outputs_of_any_size_are_dropped():
    made = text(CODE | {"outputs": [{"output_type": "stream", "text": "x" * 200_000}]}, own("y"))
    assert all(set(cell) == {"cell_type", "source", "metadata", "id"} for cell in cells(made))
