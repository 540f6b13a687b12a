"""Of several notebooks from one learner the most complete counts; where none can be read, each reason is named."""

import json

import pytest
from intake_cases import CHAPTER, RELEASE, RIGHT, STUB, answer, data, notebook

from grading.intake.choose import choose, recency
from grading.intake.inbox import File, Handed
from grading.intake.reading import Unreadable


def chosen(*files: File, flags=()):
    return choose(CHAPTER, RELEASE, Handed("s", tuple(files), flags))


def test_the_most_complete_notebook_counts():
    blank, done = data(notebook(STUB)), data()
    half = data(notebook(answer({1: RIGHT[1]})))
    for names in (("a", "b", "c"), ("c", "a", "b"), ("b", "c", "a")):
        got = chosen(*(File(f"{name}.ipynb", text) for name, text in zip(names, (blank, done, half), strict=True)))
        assert got.file.data == done
        assert "several_notebooks:3" in got.flags


def test_of_equally_complete_notebooks_the_latest_number_counts():
    later = data(notebook(answer(RIGHT | {1: "kept = [*numbers][: self.limit]"})))
    for name in ("x (2).ipynb", "x-Copy2.ipynb", "x - 副本 (2).ipynb", "x-2.ipynb", "x_v2.ipynb", "x（2）.ipynb.txt"):
        files = File("x.ipynb", data()), File(name, later), File("x (1).ipynb", data(notebook(STUB)))
        assert chosen(*files).file.path == name
    assert recency("20230001.ipynb")[0] == recency("20230001_35_boxes.ipynb")[0] == 0


def test_identical_copies_count_once():
    assert chosen(File("a.ipynb", data()), File("b.ipynb", data())).flags == ()


def test_unreadable_beside_readable_is_flagged():
    got = chosen(File("d/a.ipynb", b""), File("d/b.ipynb", data()), File("c.zip", problem="encrypted"), flags=("late",))
    assert got.file.path == "d/b.ipynb"
    assert got.flags == ("late", "also_unreadable:c.zip", "also_unreadable:a.ipynb")


def test_all_unreadable_names_each_reason():
    with pytest.raises(Unreadable, match=r"^a.ipynb: an empty file; b.ipynb: too large$"):
        chosen(File("s/a.ipynb", b""), File("s/b.ipynb", problem="too large"))


def test_nothing_handed_in_names_what_was_there():
    with pytest.raises(Unreadable, match="empty"):
        chosen()
    with pytest.raises(Unreadable, match="only answer.pdf"):
        choose(CHAPTER, RELEASE, Handed("s", others=("s/answer.pdf",)))


def test_repairs_of_the_file_are_among_the_flags():
    got = chosen(File("a.ipynb", json.dumps(notebook(), ensure_ascii=False).replace("box", "盒子").encode("gb18030")))
    assert "encoding:gb18030" in got.flags


def test_in_a_whole_course_the_chapter_is_found():
    other = json.dumps({"cells": [{"cell_type": "code", "source": "import pandas"}]}).encode()
    many = [File(f"{number:02}_other.ipynb", other + b" " * number) for number in range(60)]
    got = chosen(*many, File("zz_07_boxes.ipynb", data()))
    assert got.file.path == "zz_07_boxes.ipynb" and "notebooks_not_looked_at:41" in got.flags
