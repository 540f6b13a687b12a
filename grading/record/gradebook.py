"""nbgrader's gradebook, through one session for the whole batch."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

from grading.alembic_path import ensure_alembic_on_path
from grading.result import GRADED, Result
from grading.unit import Course


def url_of(folder: Path) -> str:
    """The gradebook of a results folder. A lock of over 5 s would abort nbgrader's own commands; 60 s does not."""
    return f"sqlite:///{folder / 'gradebook.db'}?timeout=60"


def folder_of(db_url: str, default: Path) -> Path:
    """The folder that the gradebook lies in, where the course's seed is kept; `default` for a database server."""
    if not db_url.startswith("sqlite:///"):
        return default
    return Path(db_url.removeprefix("sqlite:///").partition("?")[0]).resolve().parent


class Record:
    """An open gradebook that knows the chapter. Use as a context manager."""

    def __init__(self, course: Course, db_url: str):
        ensure_alembic_on_path()
        from nbgrader.api import Gradebook
        from sqlalchemy.exc import SAWarning

        # nbgrader 0.9.6 makes rows before it adds them to the session, and SQLAlchemy 2.1 says so each time
        warnings.filterwarnings("ignore", category=SAWarning, module="nbgrader")
        self.course, self.name, self._db_url = course, course.chapter.name, db_url
        self.gradebook = Gradebook(db_url, "multi-token-decoding")
        self._held: set[str] | None = None
        self._know_chapter()

    def __enter__(self) -> Record:
        return self

    def __exit__(self, *error) -> None:
        self.gradebook.close()

    def _know_chapter(self) -> None:
        """Brings the chapter's cells and points up to date, as nbgrader's own SaveCells would."""
        from nbgrader.api import MissingEntry
        from nbgrader.preprocessors import SaveCells

        from grading.release.notebook import with_hidden_tests

        notebook = with_hidden_tests(self.course.source)
        self.gradebook.update_or_create_assignment(self.name)
        try:
            known = {cell.name: cell.source for cell in self.gradebook.find_notebook(self.name, self.name).source_cells}
        except MissingEntry:
            known = {}
        wanted = {c.metadata.nbgrader.grade_id: c.source for c in notebook.cells if "nbgrader" in c.metadata}
        points = {cell.grade_id: cell.points for cell in self.course.chapter.tests}
        stored = {}
        if known:
            stored = {c.name: c.max_score for c in self.gradebook.find_notebook(self.name, self.name).grade_cells}
        if known == wanted and stored == points:
            return
        resources = {"nbgrader": {"notebook": self.name, "assignment": self.name, "db_url": self._db_url}}
        try:
            SaveCells().preprocess(notebook, resources)
        except RuntimeError as error:
            raise ValueError(f"{error}; grade into another folder (--out) or gradebook (--db)") from None
        self.gradebook.db.expire_all()

    def write(self, result: Result) -> None:
        """Records one learner's result: automatic scores only, a manual score or comment stays."""
        from nbgrader.api import MissingEntry

        gradebook = self.gradebook
        gradebook.update_or_create_student(result.student_id)
        if result.status != GRADED:
            try:
                held = gradebook.find_submission(self.name, result.student_id)
            except MissingEntry:
                return
            if not any(grade.manual_score is not None for nb in held.notebooks for grade in nb.grades):
                gradebook.remove_submission(self.name, result.student_id)
            return
        submission = gradebook.update_or_create_submission(self.name, result.student_id)
        (notebook,) = submission.notebooks
        scores = {check.grade_id: check.score for check in result.checks}
        for grade in notebook.grades:
            grade.auto_score = scores[grade.name]
            grade.needs_manual_grade = grade.manual_score is not None
        untouched = any(flag == "answer_missing" for flag in result.flags)
        for comment in notebook.comments:
            comment.auto_comment = "No response." if untouched else None
        gradebook.db.commit()

    def with_manual_scores(self, result: Result) -> Result:
        """The result as the gradebook now has it: a score that a person gave stands in place of the automatic one."""
        from nbgrader.api import MissingEntry

        if result.status != GRADED:
            return result
        try:
            notebook = self.gradebook.find_submission_notebook(self.name, self.name, result.student_id)
        except MissingEntry:
            return result
        manual = {g.name: g.manual_score + (g.extra_credit or 0) for g in notebook.grades if g.manual_score is not None}
        if not manual:
            return result
        checks = tuple(replace(check, score=manual.get(check.grade_id, check.score)) for check in result.checks)
        return replace(result, checks=checks, flags=(*result.flags, f"manual_score:{len(manual)}"))

    def holds(self, result: Result) -> bool:
        """Whether the gradebook has a submission exactly where the result says that there is one."""
        if self._held is None:
            submissions = self.gradebook.assignment_submissions(self.name)
            self._held = {submission.student_id for submission in submissions}
        return (result.student_id in self._held) == (result.status == GRADED)

    def scores(self, student_id: str) -> dict[str, float]:
        """{grade_id: automatic score} as recorded."""
        notebook = self.gradebook.find_submission_notebook(self.name, self.name, student_id)
        return {grade.name: grade.auto_score for grade in notebook.grades}
