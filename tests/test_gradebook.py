"""The gradebook is nbgrader's: what is written quickly is what nbgrader's own methods write."""

import os
import sqlite3
import subprocess
import sys

from judging import CHAPTER

from grading import chapter
from grading.nbgrader_start import newest_revision
from grading.record.gradebook import Record, url_of
from grading.result import GRADED, MISSING, CheckResult, Result
from grading.unit import Course

COURSE = Course.load(chapter.find()[0])
LINKS = {"id", "cell_id", "notebook_id", "assignment_id"}


def result(student: str, passed: bool = True, **more) -> Result:
    checks = tuple(
        CheckResult(cell.grade_id, cell.mechanism, cell.hidden, cell.points, cell.points if passed else 0.0)
        for cell in CHAPTER.tests
    )
    return Result(student, GRADED, checks=checks, max_score=CHAPTER.max_score, **more)


def rows(folder) -> dict[str, list[tuple]]:
    """All tables; ids, which are drawn at random, only by whether they are there."""
    with sqlite3.connect(folder / "gradebook.db") as connection:
        names = [name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")]
        found = {}
        for name in names:
            held = connection.execute(f"select * from {name}")
            columns = [column for column, *_ in held.description]
            hidden = [column in LINKS and name != "student" for column in columns]
            found[name] = sorted(
                str([value is None if hide else value for value, hide in zip(row, hidden, strict=True)]) for row in held
            )
    return found


def test_a_submission_has_the_rows_that_nbgrader_would_make(tmp_path):
    for folder in (tmp_path / "ours", tmp_path / "theirs"):
        folder.mkdir()
    with Record(COURSE, url_of(tmp_path / "ours")) as record:
        record.write(result("ann"))
        record.write(result("bob", passed=False, flags=("answer_missing",)))
    with Record(COURSE, url_of(tmp_path / "theirs")) as record:
        gradebook = record.gradebook
        for student, share in (("ann", 1), ("bob", 0)):
            gradebook.add_student(student)
            (notebook,) = gradebook.add_submission(CHAPTER.name, student).notebooks
            for grade in notebook.grades:
                grade.auto_score = share * grade.max_score
                grade.needs_manual_grade = False
            for comment in notebook.comments:
                comment.auto_comment = None if share else "No response."
        gradebook.db.commit()
    ours, theirs = rows(tmp_path / "ours"), rows(tmp_path / "theirs")
    assert len(ours["grade"]) == 2 * len(CHAPTER.tests)
    assert ours == theirs


def test_a_second_result_takes_the_place_of_the_first_and_no_row_is_doubled(tmp_path):
    with Record(COURSE, url_of(tmp_path)) as record:
        record.write(result("ann", passed=False))
        before = {name: len(held) for name, held in rows(tmp_path).items()}
        record.write(result("ann"))
        assert sum(record.scores("ann").values()) == CHAPTER.max_score
        assert {name: len(held) for name, held in rows(tmp_path).items()} == before
        record.write(Result("ann", MISSING, max_score=CHAPTER.max_score))
        assert rows(tmp_path)["grade"] == []


def test_a_manual_score_stands_in_place_of_the_automatic_one_for_its_learner_only(tmp_path):
    with Record(COURSE, url_of(tmp_path)) as record:
        for student in ("ann", "bob"):
            record.write(result(student))
        (grade, *_) = record.gradebook.find_submission_notebook(CHAPTER.name, CHAPTER.name, "bob").grades
        name, grade.manual_score, grade.extra_credit = grade.name, 1.0, 0.5
        record.gradebook.db.commit()
        record.write(result("bob", passed=False))
        ann, bob = record.with_manual_scores([result("ann"), result("bob", passed=False)])
        assert ann == result("ann")
        assert {check.grade_id: check.score for check in bob.checks if check.score} == {name: 1.5}
        assert "manual_score:1" in bob.flags
        assert record.scores("bob")[name] == 0.0


def test_the_schemas_revision_is_the_one_that_alembic_names():
    """In a process of its own: here nbgrader's own way has been replaced."""
    code = "import nbgrader.api; print(nbgrader.api.get_alembic_version())"
    environment = os.environ | {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert newest_revision() == said.strip() != ""
