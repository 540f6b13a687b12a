"""All notebooks are in one normal form; and the check for it sees each kind of deviation."""

import copy
from pathlib import Path

import nbformat
import pytest

from grading import notebook_form

ROOT = Path(__file__).parents[1]
FOLDERS = ("source", "release", "notebooks")
NOTEBOOKS = [
    path
    for folder in FOLDERS
    for path in sorted((ROOT / folder).rglob("*.ipynb"))
    if ".ipynb_checkpoints" not in path.parts
]


@pytest.mark.parametrize("folder", FOLDERS)
def test_folder_holds_a_notebook(folder):
    holds = [path for path in NOTEBOOKS if path.is_relative_to(ROOT / folder)]
    assert holds, f"no notebook in {folder}/"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_notebook_is_in_normal_form(path):
    published = path.is_relative_to(ROOT / "notebooks")
    found = notebook_form.problems(path.read_text(encoding="utf-8"), outputs=published)
    assert not found, "\n".join(found)


BLANK = {
    "cells": [
        {"cell_type": "markdown", "id": "title", "metadata": {}, "source": ["# 标题"]},
        {
            "cell_type": "code",
            "execution_count": None,
            "id": "step-1_sum",
            "metadata": {"tags": ["form"]},
            "outputs": [],
            "source": ["print(1 + 1)"],
        },
    ],
    "metadata": notebook_form.NOTEBOOK_METADATA,
    "nbformat": 4,
    "nbformat_minor": 5,
}
STDOUT = {"name": "stdout", "output_type": "stream", "text": ["2\n"]}
STDERR = {"name": "stderr", "output_type": "stream", "text": ["a warning\n"]}
ERROR = {"ename": "ValueError", "evalue": "", "output_type": "error", "traceback": []}


def blank() -> dict:
    return copy.deepcopy(BLANK)


def published(*outputs: dict, count: int | None = 1, source: str = "print(1 + 1)") -> dict:
    notebook = blank()
    notebook["cells"][1].update(execution_count=count, outputs=list(outputs), source=[source])
    return notebook


def with_cell(**fields) -> dict:
    notebook = blank()
    notebook["cells"][1].update(fields)
    return notebook


def text_of(notebook: dict) -> str:
    return nbformat.writes(nbformat.from_dict(notebook)) + "\n"


def other_kernel() -> dict:
    notebook = blank()
    notebook["metadata"]["kernelspec"]["display_name"] = "venv"
    return notebook


def run_out_of_order() -> dict:
    notebook = published(STDOUT, count=2)
    again = copy.deepcopy(notebook["cells"][1])
    notebook["cells"].append(again | {"id": "step-2", "execution_count": 1})
    return notebook


def test_good_notebooks_have_no_problems():
    assert notebook_form.problems(text_of(blank()), outputs=False) == []
    assert notebook_form.problems(text_of(published(STDOUT)), outputs=True) == []


@pytest.mark.parametrize(
    ("notebook", "outputs", "problem"),
    [
        (blank() | {"nbformat_minor": 4}, False, "not nbformat 4.5"),
        (with_cell(id="x" * 41), False, "longer than 40 characters"),
        (with_cell(id="Step-1"), False, "not lower-case words"),
        (with_cell(id="3f2a91bc"), False, "looks random"),
        (with_cell(id="3f2a91bc-0000-4e1d-9c55-0123456789ab"), False, "looks random"),
        (with_cell(metadata={"collapsed": True}), False, "metadata key collapsed is not allowed"),
        (with_cell(metadata={"tags": ["nbval-skip"]}), False, "tag nbval-skip is not allowed"),
        (with_cell(outputs=[STDOUT]), False, "has outputs"),
        (with_cell(execution_count=1), False, "has an execution count"),
        (other_kernel(), False, "notebook metadata is not exactly"),
        (published(count=None), True, "was not executed"),
        (published(), True, "prints or plots, but has no outputs"),
        (published(source="fig, ax = plt.subplots()"), True, "prints or plots, but has no outputs"),
        (published(source="%matplotlib inline\nfor i in range(2):\n    print(i)"), True, "prints or plots"),
        (published(STDOUT, ERROR), True, "ended in an error"),
        (published(STDOUT, STDERR), True, "wrote to stderr"),
        (run_out_of_order(), True, "do not rise"),
    ],
)
def test_one_deviation_is_one_problem(notebook, outputs, problem):
    found = notebook_form.problems(text_of(notebook), outputs=outputs)
    assert len(found) == 1 and problem in found[0], found


def test_cell_ids_are_there_and_differ():
    # Edited as text: nbformat mends both when it writes.
    text = text_of(blank())
    repeated = text.replace('"id": "title"', '"id": "step-1_sum"')
    assert notebook_form.problems(repeated, outputs=False) == ["cell id step-1_sum is used twice"]
    missing = text.replace('"id": "title",', "")
    assert notebook_form.problems(missing, outputs=False) == ["cell 0 has no id"]


@pytest.mark.parametrize(
    "source",
    [
        "x = 1",
        "def show():\n    print(1)",
        "if missing:\n    print(missing)",
        "fig, ax = plt.subplots()\nplt.close(fig)",
    ],
)
def test_cell_that_may_show_nothing_needs_no_outputs(source):
    assert notebook_form.problems(text_of(published(source=source)), outputs=True) == []


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.removesuffix("\n"),
        lambda text: text.replace("标题", "\\u6807\\u9898"),
        lambda text: text.replace("\n ", "\n  "),
    ],
    ids=["no newline at the end", "escapes", "indent 2"],
)
def test_other_ways_to_write_the_same_notebook(spoil):
    found = notebook_form.problems(spoil(text_of(blank())), outputs=False)
    assert len(found) == 1 and "not what nbformat writes" in found[0], found


def test_text_that_is_no_notebook():
    assert notebook_form.problems("{", outputs=False)[0].startswith("not JSON")
    assert notebook_form.problems("[]", outputs=False) == ["not nbformat 4.5"]
    misspelt = text_of(blank()).replace('"source"', '"sauce"')
    assert notebook_form.problems(misspelt, outputs=False)[0].startswith("not a valid notebook")
