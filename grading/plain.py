"""Plain `nbgrader autograde`: the learner's code and the tests in one unprotected kernel.

The reference that our own grading is compared with. It runs strangers' code as you: never give it a real inbox.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from nbgrader.api import Gradebook
from nbgrader.apps import NbGraderAPI

from grading.chapter import ROOT, Chapter
from grading.release.build import course_config, generate_release
from grading.seed import VARIABLE


def autograde(ch: Chapter, submissions: Mapping[str, Path], out: Path, seed: int) -> dict[str, dict[str, float] | str]:
    """Grades {student: notebook} one after another in nbgrader's folders below `out`.

    Returns {student: {grade_id: score}}, or a student's error in words.
    """
    db_url = f"sqlite:///{out / 'gradebook.db'}"
    generate_release(ch.name, out / "release", ROOT, db_url)
    config = course_config(db_url)
    config.CourseDirectory.submitted_directory = str(out / "submitted")
    config.CourseDirectory.autograded_directory = str(out / "autograded")
    config.Exchange.root = str(out / "exchange")
    for name in ("sanitize_preprocessors", "autograde_preprocessors"):
        del config.Autograde[name]  # nbgrader's defaults, in place of ours
    api = NbGraderAPI(config=config, log_level="ERROR")
    os.environ[VARIABLE] = str(seed)
    scores: dict[str, dict[str, float] | str] = {}
    for student, notebook in submissions.items():
        target = out / "submitted" / student / ch.name / f"{ch.name}.ipynb"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(notebook, target)
        result = api.autograde(ch.name, student, force=True)
        if result["success"]:
            with Gradebook(db_url) as gradebook:
                grades = gradebook.find_submission_notebook(ch.name, ch.name, student).grades
                scores[student] = {grade.name: grade.auto_score for grade in grades}
        else:
            scores[student] = (
                (result.get("error") or result["log"] or "nbgrader gave no reason").strip().split("\n")[-1]
            )
    return scores
