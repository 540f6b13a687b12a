"""nbgrader's gradebook, through one session for the whole batch."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from grading.nbgrader_start import quickly_import_nbgrader
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


def _replaced(result: Result, manual: dict[str, float]) -> Result:
    if result.status != GRADED or not manual:
        return result
    checks = tuple(replace(check, score=manual.get(check.grade_id, check.score)) for check in result.checks)
    return replace(result, checks=checks, flags=(*result.flags, f"manual_score:{len(manual)}"))


def _shown(db_url: str) -> str:
    """A URL without its password."""
    return re.sub(r"(://[^:/@]*:)[^@/]*@", r"\1***@", db_url)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


class Record:
    """An open gradebook that knows the chapter: a context manager. Raises ValueError for one that cannot be used."""

    def __init__(self, course: Course, db_url: str):
        quickly_import_nbgrader()
        from nbgrader.api import Gradebook
        from sqlalchemy.exc import SAWarning, SQLAlchemyError

        # nbgrader 0.9.6 makes rows before it adds them to the session, and SQLAlchemy 2.1 says so each time
        warnings.filterwarnings("ignore", category=SAWarning, module="nbgrader")
        self.course, self.name, self._db_url = course, course.chapter.name, db_url
        self._held: set[str] | None = None
        try:
            self.gradebook = Gradebook(db_url, "multi-token-decoding")
            self._know_chapter()
        except (SQLAlchemyError, ImportError) as error:  # a missing driver is an ImportError
            raise ValueError(f"gradebook {_shown(db_url)} cannot be used: {_first_line(error)}") from None

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
        if result.status != GRADED:
            gradebook.update_or_create_student(result.student_id)
            try:
                held = gradebook.find_submission(self.name, result.student_id)
            except MissingEntry:
                return
            if not any(grade.manual_score is not None for nb in held.notebooks for grade in nb.grades):
                gradebook.remove_submission(self.name, result.student_id)
            return
        notebook_id = self._submitted_notebook(result.student_id) or self._add_submission(result.student_id)
        self._write_scores(notebook_id, result)
        gradebook.db.commit()

    # The tables are nbgrader's, and its own methods fill them one object at a time: sixty queries a submission.

    @cached_property
    def _ids(self) -> dict:
        """Ids of the chapter: "assignment", "notebook", and {name: id} of its "grade" and "solution" cells."""
        notebook = self.gradebook.find_notebook(self.name, self.name)
        grade, solution = notebook.grade_cells, notebook.solution_cells
        cells = {"grade": {cell.name: cell.id for cell in grade}, "solution": {cell.name: cell.id for cell in solution}}
        return cells | {"assignment": notebook.assignment.id, "notebook": notebook.id}

    def _submitted_notebook(self, student_id: str) -> str | None:
        from nbgrader.api import SubmittedAssignment, SubmittedNotebook
        from sqlalchemy import select

        query = select(SubmittedNotebook.id).join(SubmittedNotebook.assignment)
        query = query.where(SubmittedAssignment.assignment_id == self._ids["assignment"])
        return self.gradebook.db.scalar(query.where(SubmittedAssignment.student_id == student_id))

    def _add_submission(self, student_id: str) -> str:
        """What nbgrader's `add_submission` makes, with the same rows; returns the submitted notebook's id."""
        from nbgrader.api import Comment, Grade, Student, SubmittedAssignment, SubmittedNotebook, new_uuid
        from sqlalchemy import insert

        db, ids = self.gradebook.db, self._ids
        if db.get(Student, student_id) is None:
            db.execute(insert(Student), [{"id": student_id}])
        submission, notebook = new_uuid(), new_uuid()
        row = {"id": submission, "assignment_id": ids["assignment"], "student_id": student_id}
        db.execute(insert(SubmittedAssignment), [row])
        row = {"id": notebook, "notebook_id": ids["notebook"], "assignment_id": submission}
        db.execute(insert(SubmittedNotebook), [row])
        for table, cells in ((Grade, ids["grade"]), (Comment, ids["solution"])):
            db.execute(insert(table), [{"cell_id": cell, "notebook_id": notebook} for cell in cells.values()])
        return notebook

    def _write_scores(self, notebook_id: str, result: Result) -> None:
        from nbgrader.api import Comment, Grade
        from sqlalchemy import select, update

        db = self.gradebook.db
        held = db.execute(select(Grade.id, Grade.cell_id, Grade.manual_score).where(Grade.notebook_id == notebook_id))
        names = {cell: name for name, cell in self._ids["grade"].items()}
        scores = {check.grade_id: check.score for check in result.checks}
        rows = [
            {"id": grade, "auto_score": scores[names[cell]], "needs_manual_grade": manual is not None}
            for grade, cell, manual in held
            if cell in names
        ]
        db.execute(update(Grade), rows)
        said = "No response." if "answer_missing" in result.flags else None
        db.execute(update(Comment).where(Comment.notebook_id == notebook_id).values(auto_comment=said))

    def forget(self, student_id: str) -> None:
        """Takes a learner's submission of this chapter out, manual scores too, and the learner if nothing is left."""
        from nbgrader.api import MissingEntry

        with contextlib.suppress(MissingEntry):
            self.gradebook.remove_submission(self.name, student_id)
        with contextlib.suppress(MissingEntry):
            if not self.gradebook.student_submissions(student_id):
                self.gradebook.remove_student(student_id)

    def with_manual_scores(self, results: Sequence[Result]) -> list[Result]:
        """The results as the gradebook now has them: where a person gave a score, that one."""
        from nbgrader.api import Grade, SubmittedAssignment, SubmittedNotebook
        from sqlalchemy import select

        query = select(SubmittedAssignment.student_id, Grade.cell_id, Grade.manual_score, Grade.extra_credit)
        query = query.join(SubmittedNotebook, SubmittedNotebook.assignment_id == SubmittedAssignment.id)
        query = query.join(Grade, Grade.notebook_id == SubmittedNotebook.id).where(Grade.manual_score.is_not(None))
        query = query.where(SubmittedAssignment.assignment_id == self._ids["assignment"])
        names = {cell: name for name, cell in self._ids["grade"].items()}
        given: dict[str, dict[str, float]] = defaultdict(dict)
        for student_id, cell, score, extra in self.gradebook.db.execute(query):
            given[student_id][names[cell]] = score + (extra or 0)
        return [_replaced(result, given[result.student_id]) for result in results]

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
