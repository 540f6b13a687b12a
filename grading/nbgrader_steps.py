"""The grader as steps of nbgrader's own `autograde`, so that its command and the formgrader's button give equal scores.

nbgrader_config.py puts TakeLearnersCode into `Autograde.sanitize_preprocessors` and Judge, in place of nbgrader's
Execute, into `Autograde.autograde_preprocessors`.
"""

from __future__ import annotations

import atexit
import json

import nbformat
from nbformat.notebooknode import NotebookNode
from nbgrader.preprocessors import NbGraderPreprocessor
from traitlets import Enum, Integer

from grading.chapter import BEGIN_HIDDEN, ROOT, without_hidden
from grading.intake.rebuild import rebuild
from grading.judge.pool import Judges
from grading.record.gradebook import folder_of
from grading.record.notebooks import autograded, submitted
from grading.seed import course_seed
from grading.unit import Course, Prepared, finish

_judges: dict[tuple[str, str], Judges] = {}


def judges_for(course: Course, sandbox: str) -> Judges:
    """A judge server of this process, started at the first use and ended with the process."""
    known = _judges.get((course.chapter.name, sandbox))
    if known is None or not known.alive():
        known = _judges[course.chapter.name, sandbox] = Judges(course.source, sandbox)
        atexit.register(known.close)
    return known


def course_of(resources) -> Course:
    name = resources["nbgrader"]["assignment"]
    return Course.load(ROOT / "source" / name / f"{name}.ipynb")


def plain(notebook: NotebookNode) -> dict:
    return json.loads(nbformat.writes(notebook, split_lines=False))


class TakeLearnersCode(NbGraderPreprocessor):
    """Puts the learner's code into the instructor's structure, whatever became of the notebook's own."""

    def preprocess(self, nb: NotebookNode, resources):
        course = course_of(resources)
        rebuilt = rebuild(course.chapter, course.release, plain(nb))
        for flag in rebuilt.plan.flags:
            self.log.warning("repaired: %s", flag)
        return nbformat.from_dict(submitted(course, rebuilt.plan)), resources


class HideHiddenTests(NbGraderPreprocessor):
    """Takes hidden checks out of nbgrader's own feedback: their code, and what their errors say."""

    def preprocess_cell(self, cell: NotebookNode, resources, index: int):
        if cell.cell_type == "code" and BEGIN_HIDDEN in cell.source:
            cell.source = without_hidden(cell.source)
            for output in cell.outputs:
                if output.output_type == "error":
                    output.update(ename="隐藏检查", evalue="没有通过", traceback=["隐藏检查没有通过"])
        return cell, resources


class Judge(NbGraderPreprocessor):
    """Runs the learner's cells in the sandbox and the test cells in the judge; each test's result is its output."""

    sandbox = Enum(("bwrap", "none"), "bwrap", help="none: learners' code runs as you").tag(config=True)
    seed = Integer(None, allow_none=True, help="instead of the course's own, kept beside the gradebook").tag(
        config=True
    )

    def preprocess(self, nb: NotebookNode, resources):
        course, student = course_of(resources), resources["nbgrader"]["student"]
        folder = folder_of(resources["nbgrader"]["db_url"], ROOT)
        seed = course_seed(folder) if self.seed is None else self.seed
        rebuilt = rebuild(course.chapter, course.release, plain(nb))
        ((_, reply),) = judges_for(course, self.sandbox).run([(student, rebuilt.plan, seed)])
        if "lost" in reply:
            raise RuntimeError(f"{student} could not be judged: {reply['lost']}")
        prepared = Prepared(student, rebuilt.plan, rebuilt.answer, "", rebuilt.plan.flags)
        result = finish(course, prepared, reply, seed, self.sandbox)
        return nbformat.from_dict(autograded(course, plain(nb), result)), resources
