"""nbgrader's settings for this course. Each non-default has its reason; everything else is nbgrader's default."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT))  # nbgrader imports our preprocessors; the project is not installed as a package

from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor  # noqa: E402
from nbgrader.preprocessors import (  # noqa: E402
    AssignLatePenalties,
    CheckCellMetadata,
    ClearHiddenTests,
    ClearOutput,
    ComputeChecksums,
    GetGrades,
    IgnorePattern,
    LimitOutput,
    LockCells,
    OverwriteCells,
    SaveAutoGrades,
    SaveCells,
)

from grading.nbgrader_steps import HideHiddenTests, Judge, TakeLearnersCode  # noqa: E402
from grading.release.preprocessors import DropInstructorCells, FillOpening, TodoStubs  # noqa: E402

c = get_config()  # noqa: F821  (defined by traitlets when it reads this file)

c.CourseDirectory.root = str(ROOT)  # commands work from any folder, not only from the repository's root
c.CourseDirectory.course_id = "multi-token-decoding"
# `_drafts` and the like never reach learners; the rest is nbgrader's own default
c.CourseDirectory.ignore = ["_*", ".ipynb_checkpoints", "*.pyc", "__pycache__", ".pytest_cache"]
# a lock of over 5 s aborts nbgrader's whole batch; 60 s outlives any other writer
c.CourseDirectory.db_url = f"sqlite:///{ROOT / 'gradebook.db'}?timeout=60"

# The default list, without header/footer and generated tests, which the course does not use, and with three of ours:
# one stub per TODO instead of one for all, instructor's cells dropped, badges filled in.
c.GenerateAssignment.preprocessors = [
    DropInstructorCells,
    FillOpening,
    LockCells,
    TodoStubs,
    ClearOutput,
    CheckCellMetadata,
    ComputeChecksums,
    SaveCells,
    ClearHiddenTests,
    ComputeChecksums,
    CheckCellMetadata,
]

# The default list ends a batch at a copied cell and trusts the learner's structure; ours starts from the instructor's.
c.Autograde.sanitize_preprocessors = [ClearOutput, TakeLearnersCode, OverwriteCells, CheckCellMetadata]

# The default list with Judge in place of Execute, which runs learners' code as you, beside the gradebook. The others
# are nbgrader's own; ClearMetadataPreprocessor would drop the cell tags of the instructor's structure.
c.Autograde.autograde_preprocessors = [
    Judge,
    IgnorePattern,
    LimitOutput,
    SaveAutoGrades,
    AssignLatePenalties,
    CheckCellMetadata,
]

# The default list shows learners the hidden tests; HideHiddenTests takes them out first.
c.GenerateFeedback.preprocessors = [HideHiddenTests, GetGrades, CSSHTMLHeaderPreprocessor]
