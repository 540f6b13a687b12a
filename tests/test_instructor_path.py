"""docs/instructor.md, followed to the letter: a second chapter made, released and graded; late work; commands exist."""

import csv
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from grading import notebook_form
from grading.chapter import ROOT, load
from grading.cli import parser

PAGE = (ROOT / "docs" / "instructor.md").read_text("utf-8")
CHAPTER = "36_bonus_token"


def blocks(heading, language):
    """The code blocks of one language below a heading, indentation of list items taken off."""
    section = re.split(r"^## ", PAGE.split(f"\n## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    found = re.findall(rf"^( *)```{language}\n(.*?)^ *```$", section, re.DOTALL | re.MULTILINE)
    return [re.sub(rf"^{indent}", "", text, flags=re.MULTILINE) for indent, text in found]


def rows_of(path):
    with path.open(encoding="utf-8-sig", newline="") as file:
        return {row["student_id"]: row for row in csv.DictReader(file)}


def run(command, cwd, **environment):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=cwd, env=environment, capture_output=True, text=True
    )


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course that holds the machinery and no chapter yet: chapter 35 would only be released once more."""
    root = tmp_path_factory.mktemp("course")
    for name in ("grading",):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("nbgrader_config.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, root / name)
    return root


@pytest.fixture(scope="module")
def followed(course):
    """What the section on adding an exercise prints, its files and commands taken in order."""
    for text in blocks("再加一道练习", "python"):
        name = re.match(r"# (\w+\.py)\n", text)[1]
        (course / name).write_text(text, "utf-8")
    said = []
    for commands in blocks("再加一道练习", "bash"):
        done = run(commands, course)
        assert done.returncode == 0, done.stdout + done.stderr
        said.append(done.stdout)
    return said


def test_the_new_chapter_is_released_without_a_leak(course, followed):
    assert f"{CHAPTER}: nothing given away; unsolved it fails only by its TODOs; solved it runs clean" in followed[0]
    released = (course / "release" / CHAPTER / f"{CHAPTER}.ipynb").read_text("utf-8")
    assert "TODO 1：" in released and "SOLUTION" not in released and "HIDDEN" not in released


def test_the_new_chapter_is_in_the_form_that_notebooks_have_here(course, followed):
    text = (course / "source" / CHAPTER / f"{CHAPTER}.ipynb").read_text("utf-8")
    assert notebook_form.problems(text, outputs=False) == []
    chapter = load(course / "source" / CHAPTER / f"{CHAPTER}.ipynb")
    assert chapter.mechanisms == ("mean",) and chapter.max_score == 10


def test_its_submissions_get_the_grades_that_the_page_promises(course, followed):
    rows = rows_of(course / "结果36" / "grades.csv")
    assert {name: (row["status"], row["score"], row["mean"]) for name, row in rows.items()} == {
        "20230001": ("graded", "10", "10"),
        "20230002": ("graded", "0", "0"),
    }
    assert "20230001" in followed[-1] and "10/10" in followed[-1]


def test_feedback_and_report_of_the_new_chapter_are_there(course, followed):
    page = (course / "结果36" / "feedback" / "20230002.html").read_text("utf-8")
    assert "tokens_per_forward([1, 3])" in page and "GRADING_SEED" not in page
    assert (course / "结果36" / "report.html").stat().st_size > 1000
    assert (course / "结果36" / ".grading_seed").read_text("ascii").strip().isdecimal()


def test_the_late_policy_takes_off_what_it_says(tmp_path):
    (policy,) = blocks("截止与迟交", "python")
    (tmp_path / "late_policy.py").write_text(policy, "utf-8")
    head = "student_id,status,score,max_score,seed"
    rows = ["on_time,graded,90,100,7", "late,graded,90,100,7", "very_late,graded,50,100,7", "absent,missing,,,7"]
    (tmp_path / "grades.csv").write_text("\ufeff" + "\n".join([head, *rows]) + "\n", "utf-8")
    times = ["student_id,submitted", "on_time,2026-12-01T23:59", "late,2026-12-02T00:00", "very_late,2026-12-09T00:00"]
    (tmp_path / "times.csv").write_text("\n".join(times) + "\n", "utf-8")
    done = run("python late_policy.py grades.csv times.csv final.csv", tmp_path)
    assert done.returncode == 0, done.stderr
    handed_on = rows_of(tmp_path / "final.csv")
    assert all("seed" not in row for row in handed_on.values()), "the hidden checks' seed is not for a class list"
    final = {name: (row["days_late"], row["final"]) for name, row in handed_on.items()}
    assert final == {"on_time": ("0", "90"), "late": ("1", "80"), "very_late": ("8", "0"), "absent": ("0", "")}


def test_headings_cover_what_an_instructor_looks_for():
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) == set(headings)


def test_commands_of_the_page_are_understood():
    for heading in re.findall(r"^## (.+)$", PAGE, re.MULTILINE):
        for line in "\n".join(blocks(heading, "bash")).split("\n"):
            words = line.partition("#")[0].split()
            if words[:3] == ["python", "-m", "grading"]:
                assert parser().parse_args(words[3:]).command == words[3], line
            elif words[:1] == ["make"]:
                assert run(f"make -n {words[1]}", ROOT).returncode == 0, line


def test_what_the_page_says_of_flags_is_so():
    words = (ROOT / "grading" / "report" / "feedback_words.json").read_text("utf-8")
    for flag in re.findall(r"`flags` 里会有 `(\w+)`", PAGE) + re.findall(r"有 `(\w+)` 之类", PAGE):
        assert f'"{flag}"' in words, flag
