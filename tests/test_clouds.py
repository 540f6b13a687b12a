"""`make clouds`: what it counts as a failure, and that the documentation has a row for each environment."""

import json
import os
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location

import nbformat
import pytest

from grading.chapter import ROOT

SPEC = spec_from_file_location("clouds", ROOT / ".ci" / "clouds.py")
clouds = sys.modules["clouds"] = module_from_spec(SPEC)  # its dataclass looks itself up there
SPEC.loader.exec_module(clouds)


def report(*errors: str, stderr: str = "", unseen: tuple = ()) -> dict:
    """What clouds_execute.py would say of a notebook in which cells failed with errors of these names."""
    return {
        "errors": [{"cell": "here", "name": name, "value": "why"} for name in errors],
        "stderr": [{"cell": "there", "text": stderr}] if stderr else [],
        "images": 5,
        "unseen": list(unseen),
        "seconds": 7.2,
    }


@pytest.mark.parametrize(
    ("unsolved", "found", "says"),
    [
        (False, report(), "✓ 5 figures, 7 s"),
        (False, report("ValueError"), "✗ here: ValueError: why"),
        (False, report("NotImplementedError"), "✗ here: NotImplementedError: why"),
        (False, report(stderr="DeprecationWarning"), "✗ stderr in there: DeprecationWarning"),
        (False, report(unseen=("figure-routes",)), "✗ a figure is not shown, only its name: figure-routes"),
        (True, report("NotImplementedError", unseen=("plot",)), "✗ a figure is not shown, only its name: plot"),
        (True, report("NotImplementedError", "NotImplementedError"), "✓ 2 TODO"),
        (True, report("NotImplementedError", "NameError"), "✗ here: NameError: why"),
        (True, report(), "✗ no TODO is left to do"),
    ],
)
def test_a_notebook_fails_by_what_it_should_not_do(unsolved, found, says):
    assert clouds.verdict(found, unsolved=unsolved) == says


def test_a_python_that_is_not_there_is_said_and_is_no_failure(monkeypatch, tmp_path):
    monkeypatch.setattr(clouds, "find_python", lambda version: None)
    cells = clouds.row(clouds.ENVIRONMENTS[0], tmp_path, [], {})
    assert cells["release"].startswith("skipped: ")
    assert list(tmp_path.iterdir()) == []


def test_a_python_is_found_by_asking_it_and_not_by_its_name(monkeypatch, tmp_path):
    """pyenv's shims answer only where their version is switched on; else the newest installed one is taken."""
    shim = tmp_path / "bin" / "python3.10"
    shim.parent.mkdir()
    shim.write_text("#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    for name in ("3.10.9", "3.10.13", "3.10-dev", "3.11.7"):
        (tmp_path / "versions" / name).mkdir(parents=True)
    monkeypatch.setenv("PATH", f"{shim.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert clouds.find_python("3.10") == str(tmp_path / "versions" / "3.10.13" / "bin" / "python")
    assert clouds.find_python("3.99") is None


def test_a_notebook_is_run_by_this_python_to_its_end(tmp_path):
    cells = [
        "import sys\nprint(sys.prefix, file=sys.stderr)",
        "raise KeyError('first')",
        "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()",
        "from IPython.display import display\ndisplay({'text/plain': '<Figure size 640x480>'}, raw=True)",
        "raise NotImplementedError('TODO 1')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in cells])
    path = tmp_path / "four_cells.ipynb"
    nbformat.write(notebook, path)
    before = path.read_bytes()
    command = [sys.executable, str(ROOT / ".ci" / "clouds_execute.py"), path.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [error["name"] for error in found["errors"]] == ["KeyError", "NotImplementedError"]
    assert sys.prefix in found["stderr"][0]["text"] and found["images"] == 1
    assert found["unseen"] == [notebook.cells[3].id]
    assert path.read_bytes() == before


def test_the_table_has_a_column_for_all_that_any_row_has():
    text = clouds.table([{"environment": "a", "release": "✗ 1 | 2"}, {"environment": "b", "lab": "✓"}])
    assert text.splitlines() == [
        "| environment | release | lab |",
        "| --- | --- | --- |",
        "| a | ✗ 1 / 2 |  |",
        "| b |  | ✓ |",
    ]


def test_the_documentation_has_a_row_for_each_environment():
    lines = (ROOT / "docs" / "clouds.md").read_text("utf-8").splitlines()
    names = [line.split("|")[1].strip().strip("`") for line in lines if line.startswith("| `")]
    assert names == [environment.name for environment in clouds.ENVIRONMENTS]
