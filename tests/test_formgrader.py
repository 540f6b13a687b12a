"""An instructor's way through nbgrader's formgrader in a real browser: its buttons grade with this course's grader."""

import re
import shutil

import pytest
from browser_jupyter import serve
from browser_page import chromium, need_browser, new_page
from test_end_to_end import RELEASE, grade, make_class, rows

from grading import chapter
from grading.chapter import ROOT

CHAPTER = RELEASE.stem
LEARNERS = ("01_complete", "03_two_of_three")
SEED = "35"
GRADE_SECONDS = 180


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course folder with what nbgrader and the grader need, and two learners' submissions."""
    folder = tmp_path_factory.mktemp("course")
    for part in ("grading", "source"):
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("nbgrader_config.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    (folder / ".grading_seed").write_text(SEED + "\n", "ascii")
    make_class.make(RELEASE, folder / "inbox")
    for learner in LEARNERS:
        (handed_in,) = (folder / "inbox" / learner).glob("*.ipynb")
        submitted = folder / "submitted" / learner / CHAPTER
        submitted.mkdir(parents=True)
        shutil.copy(handed_in, submitted / RELEASE.name)
        shutil.move(folder / "inbox" / learner, folder / "wanted" / learner)
    return folder


@pytest.fixture(scope="module")
def formgrader(course, tmp_path_factory):
    """The page after all buttons were pressed, and the scores that it showed."""
    need_browser()
    with serve(course, tmp_path_factory.mktemp("home")) as jupyter, chromium() as browser:
        with new_page(browser, jupyter) as page:
            page.goto(jupyter.url("formgrader"))
            row = page.get_by_role("row").filter(has_text=CHAPTER)
            press(page, row.locator("td.assign a"), "Successfully created")
            page.goto(jupyter.url(f"formgrader/manage_submissions/{CHAPTER}"))
            shown = {}
            for learner in LEARNERS:
                row = page.get_by_role("row").filter(has_text=learner)
                assert row.locator(".status").inner_text() == "needs autograding"
                press(page, row.locator("td.autograde a"), "Successfully autograded")
                row.locator(".status", has_text=re.compile("^graded$")).wait_for()
                shown[learner] = row.locator(".score").inner_text()
                press(page, row.locator("td.generate-feedback a"), "Successfully generated feedback")
            page.screenshot(path=jupyter.home / "formgrader.png")
        yield shown


def press(page, button, says: str) -> None:
    """A formgrader button works in the background and answers with a dialog; its text is checked, then it is closed."""
    button.click()
    page.locator(".modal.in").wait_for(timeout=GRADE_SECONDS * 1000)
    dialog = page.locator(".modal")
    text = dialog.inner_text()
    assert says in text, text
    dialog.locator(".modal-footer button").click()
    dialog.wait_for(state="detached")  # it fades, and is in the way until it is gone


def test_the_release_made_by_its_button_is_the_one_in_the_repository(formgrader, course):
    assert (course / "release" / CHAPTER / RELEASE.name).read_bytes() == RELEASE.read_bytes()


def test_scores_shown_are_those_of_the_command(formgrader, course, tmp_path):
    grade(course / "wanted", tmp_path / "out", "--seed", SEED)
    wanted = rows(tmp_path / "out")
    assert {learner: float(wanted[learner]["score"]) for learner in LEARNERS} == {
        learner: float(score.split("/")[0]) for learner, score in formgrader.items()
    }
    assert all(score.split("/")[1].strip() == "100" for score in formgrader.values())
    assert wanted[LEARNERS[0]]["score"] == "100" != wanted[LEARNERS[1]]["score"]


def test_feedback_is_written_and_keeps_hidden_checks_hidden(formgrader, course):
    hidden = set()
    for cell in chapter.load(chapter.find()[0]).tests:
        for region in chapter.regions(cell.source, chapter.BEGIN_HIDDEN, chapter.END_HIDDEN):
            hidden |= {line.strip() for line in region.lines if len(line.strip()) > 25}
    assert hidden
    for learner in LEARNERS:
        (page,) = (course / "feedback" / learner).rglob("*.html")
        text = page.read_text("utf-8")
        assert "公开检查" in text
        assert "GRADING_SEED" not in text and "HIDDEN TESTS" not in text
        assert not [line for line in hidden if line in text]
