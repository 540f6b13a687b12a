"""What the READMEs say can be done can be done: commands, options, make targets and links exist."""

import re
import shlex
import subprocess

import pytest

from grading.chapter import ROOT
from grading.cli import parser
from mtp.cli import parser as mtp_parser

PAGES = [ROOT / "README.md", ROOT / "samples" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def text(page):
    return page.read_text("utf-8")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_into_the_repository_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+?)\)", text(page)):
        assert (page.parent / target).exists(), target
    anchors = {
        "#" + re.sub(r"[^\w\- ]", "", line.lstrip("# ")).strip().lower().replace(" ", "-")
        for line in text(page).split("\n")
        if line.startswith("#")
    }
    for anchor in re.findall(r"\]\((#[^)]+)\)", text(page)):
        assert anchor in anchors, anchor


def test_every_make_target_named_in_the_readme_exists():
    names = set(re.findall(r"`make ([a-z-]+)", text(ROOT / "README.md")))
    assert {"grade", "test", "env"} <= names
    for name in names:
        done = subprocess.run(["make", "-n", name], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_every_command_of_the_grader_named_in_the_readme_is_understood():
    found = re.findall(
        r"python -m grading ([a-z]+)([^`\n#]*)", "\n".join(text(page) for page in PAGES if page.name != "design.md")
    )
    assert {name for name, _ in found} == {"release", "grade", "report", "forget"}
    for name, rest in found:
        words = [word for word in rest.replace("\\", " ").split() if word not in ("…", "|")]
        if words or name != "grade":  # the bare name is a mention, not a command
            assert parser().parse_args([name, *words]).command == name


def test_every_command_of_the_models_named_in_the_docs_is_understood():
    found = re.findall(
        r"python -m mtp ([a-z-]+)([^`\n#]*)", "\n".join(text(page) for page in PAGES if page.name != "design.md")
    )
    assert {"generate", "bench", "train", "pack", "serve"} <= {name for name, _ in found}
    for name, rest in found:
        words = shlex.split(rest)
        if words or name in ("bench", "pack"):  # the bare name is a mention, not a command
            assert mtp_parser().parse_args([name, *words]).run


def options(parser_of_commands, command: str) -> set[str]:
    actions = parser_of_commands._subparsers._group_actions[0].choices[command]._actions
    return {option for action in actions for option in action.option_strings if option.startswith("--")}


def test_every_option_listed_in_the_readme_exists_and_none_that_matters_is_left_out():
    listed = set(re.findall(r"`(--[a-z]+)", text(ROOT / "README.md")))
    known = options(parser(), "grade")
    assert listed <= known | options(mtp_parser(), "bench")
    assert known - listed <= {"--help", "--out", "--seed", "--sandbox", "--chapter"}


def test_the_readme_speaks_english_too():
    assert "## English" in text(ROOT / "README.md")
