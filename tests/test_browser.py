"""A learner's way through the released notebook in a real browser: JupyterLab, Chromium, mouse and keyboard."""

import io
import shutil
from dataclasses import dataclass
from pathlib import Path

import browser_page
import matplotlib.image
import pytest
from answers import REFERENCE, STUBS
from browser_jupyter import Jupyter, serve
from browser_page import NotebookPage, chromium, need_browser, new_page
from test_end_to_end import RELEASE, grade, rows

PLOTS = ("figure-routes", "plot-length", "plot-threshold", "plot-strip", "plot-lossy")
PUBLIC = ("test-propose-public", "test-accept-public", "test-verify-public", "test-verify-inputs", "test-decode-public")


@dataclass
class Learner:
    """What came of the way: the notebook as saved after each of the two runs, and what the page then showed."""

    browser: object
    jupyter: Jupyter
    file: Path
    unsolved: dict
    solved: dict
    message: str  # the text under the first check, before anything was written
    shown: list  # width and height in pixels of each plot that the page shows in the end; 0 if it did not load


@pytest.fixture(scope="module")
def learner(tmp_path_factory):
    """Opens the release, runs all, types the three answers and who hands in, runs all, saves."""
    need_browser()
    folder, home = tmp_path_factory.mktemp("learner"), tmp_path_factory.mktemp("home")
    file = folder / RELEASE.name
    shutil.copy(RELEASE, file)
    with serve(folder, home) as jupyter, chromium() as browser:
        with new_page(browser, jupyter) as page:
            notebook = NotebookPage(page, jupyter, file)
            notebook.open()
            unsolved = notebook.run_all()
            output = notebook.cell(PUBLIC[0]).locator(".jp-OutputArea-output").first
            output.scroll_into_view_if_needed()
            message = notebook.until("the message is shown", output.inner_text)
            for todo, stub in STUBS.items():
                assert "\n" not in REFERENCE[todo], "one line is typed over one line"
                notebook.replace_line("decoder", stub[: len('raise NotImplementedError("TODO n')], REFERENCE[todo])
            notebook.replace_line("handin-who", "student_id =", 'student_id = "2026001"')
            notebook.replace_line("handin-who", "student_name =", 'student_name = "小明"')
            notebook.save()  # the last cell looks at the file, and says so where it is behind
            solved = notebook.run_all()
            shown = [image_size(notebook.cell(cell_id)) for cell_id in PLOTS]
        yield Learner(browser, jupyter, file, unsolved, solved, message, shown)


def image_size(cell) -> tuple[int, int]:
    image = cell.locator(".jp-OutputArea img")
    image.scroll_into_view_if_needed()
    decoded = "async (image) => { await image.decode(); return [image.naturalWidth, image.naturalHeight] }"
    return tuple(image.evaluate(decoded))


def outputs(notebook: dict, kind: str, name: str | None = None) -> dict[str, list[dict]]:
    """Cell id -> its outputs of a kind (and, of streams, a name), cells without any left out."""
    found = {}
    for cell in notebook["cells"]:
        listed = [output for output in cell.get("outputs", []) if output["output_type"] == kind]
        if listed := [output for output in listed if name is None or output.get("name") == name]:
            found[cell["id"]] = listed
    return found


def text_of(notebook: dict, cell_id: str) -> str:
    return "".join("".join(output["text"]) for output in outputs(notebook, "stream", "stdout").get(cell_id, []))


@pytest.mark.parametrize(("ci", "raised"), [("", pytest.skip.Exception), ("true", AssertionError)])
def test_without_a_browser_these_are_skipped_but_never_in_ci(monkeypatch, ci, raised):
    monkeypatch.setattr(browser_page.shutil, "which", lambda name: None)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(raised, match="chromium"):
        need_browser()


def test_unsolved_it_stops_at_the_first_todo_and_at_nothing_else(learner):
    errors = outputs(learner.unsolved, "error")
    assert set(errors) == {PUBLIC[0]}
    (error,) = errors[PUBLIC[0]]
    assert error["ename"] == "NotImplementedError" and error["evalue"].startswith("TODO 1")
    assert outputs(learner.unsolved, "stream", "stderr") == {}
    ids = [cell["id"] for cell in learner.unsolved["cells"] if cell["cell_type"] == "code"]
    ran = [cell["id"] for cell in learner.unsolved["cells"] if cell.get("execution_count")]
    assert ran == ids[: ids.index(PUBLIC[0]) + 1], "all cells up to the first check run, none after it"


def test_the_page_names_the_todo_without_a_traceback(learner):
    assert "TODO 1" in learner.message and "Traceback" not in learner.message
    assert len(learner.message.splitlines()) < 12


def test_solved_it_runs_to_its_end_without_an_error(learner):
    assert outputs(learner.solved, "error") == {} and outputs(learner.solved, "stream", "stderr") == {}
    assert all(cell["execution_count"] for cell in learner.solved["cells"] if cell["cell_type"] == "code")


@pytest.mark.parametrize("cell_id", PUBLIC)
def test_solved_each_public_check_says_that_it_passed(learner, cell_id):
    said = text_of(learner.solved, cell_id)
    assert said.count("✓") > 1 and "全部通过" in said
    if cell_id == PUBLIC[-1]:
        assert "3 个 TODO 完成 3 个" in said


def test_solved_all_plots_are_on_the_page_and_in_the_file(learner):
    for cell_id, (width, height) in zip(PLOTS, learner.shown, strict=True):
        assert width > 300 and height > 100, cell_id
        assert "image/png" in outputs(learner.solved, "display_data")[cell_id][0]["data"]


def test_what_was_saved_and_what_was_prepared_get_full_marks(learner, tmp_path):
    """The file that JupyterLab saved, and the one that the notebook's last cell made to be handed in."""
    (prepared,) = learner.file.parent.glob("2026001_小明_*.ipynb")
    (tmp_path / "inbox" / "saved").mkdir(parents=True)
    shutil.copy(learner.file, tmp_path / "inbox" / "saved")
    shutil.copy(prepared, tmp_path / "inbox")
    grade(tmp_path / "inbox", tmp_path / "out")
    graded = rows(tmp_path / "out")
    assert {student: row["score"] for student, row in graded.items()} == {"saved": "100", "2026001": "100"}


def test_on_a_phone_in_the_dark_a_plot_fits_and_keeps_its_light_ground(learner):
    learner.jupyter.set_theme("JupyterLab Dark")
    with new_page(learner.browser, learner.jupyter, width=390, height=844) as page:
        notebook = NotebookPage(page, learner.jupyter, learner.file)
        notebook.open(view="notebooks")
        page.locator("body[data-jp-theme-light=false]").wait_for(state="attached")
        cell = notebook.cell("plot-strip")
        image = cell.locator(".jp-OutputArea img")
        image.scroll_into_view_if_needed()
        box = image.bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 390, "the plot is cut off"
        # JupyterLab's page is dark there, and the plot's labels are dark: its ground has to be its own.
        pixels = matplotlib.image.imread(io.BytesIO(image.screenshot()), format="png")  # (height, width, RGBA), 0 to 1
        assert pixels[3, 3, :3].min() > 0.9
        page.screenshot(path=learner.jupyter.home / "phone-dark.png")
