"""The repository's own files: dependencies and their pins, the top level, no machine's paths, the set-up script."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = {".ci", "autograded", "docs", "grading", "mtp", "notebooks", "release", "samples", "source", "tests"}
FILES = {".gitattributes", ".gitignore", "LICENSE", "LICENSE-CC-BY-4.0", "Makefile", "README.md", "SECURITY.md"}
FILES |= {"nbgrader_config.py", "pyproject.toml", "requirements.txt"}
# A home folder with a file below it, as it gets into tracebacks and configuration; /home/learner is the sandbox's.
HOME_PATH = re.compile(r"(?<![\w.])(?:/root|/home/(?!learner\b)[\w.-]+|/Users/[\w.-]+|[A-Z]:\\+Users\\+[\w.-]+)[/\\]")


def tracked_files() -> list[Path]:
    # A checkout mounted into a container belongs to another user, which git refuses unless told.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in listing.split("\0") if name]


def requirement_lines() -> list[str]:
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def name_of(requirement: str) -> str:
    return re.sub(r"[-_.]+", "-", re.match(r"[\w.-]+", requirement).group()).lower()


def test_each_requirement_has_a_reason():
    assert requirement_lines()
    assert [line for line in requirement_lines() if not re.search(r"\s# \w", line)] == []


def test_each_requirement_is_pinned_for_ci():
    pins = (ROOT / ".ci" / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in pins if line and not line.startswith("#")]
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert {name_of(line) for line in requirement_lines()} <= {name_of(line) for line in pins}


def test_top_level_holds_only_known_names():
    assert {path.parts[0] for path in tracked_files()} - FOLDERS - FILES == set()


def test_no_tracked_file_names_a_home_folder():
    found = []
    for path in tracked_files():
        try:
            text = (ROOT / path).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue  # not text, or deleted and not committed yet
        found += [f"{path}: {match.group()}" for match in HOME_PATH.finditer(text)]
    assert found == []


def executable(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
    return path


def set_up(tmp_path: Path, python: Path, **variables: str) -> subprocess.CompletedProcess:
    """Run a copy of the set-up script, so that a failure of this test cannot touch the real environment."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "setup_env.sh", tmp_path / ".ci")
    environment = os.environ | {"PYTHON": str(python), "CI": ""} | variables
    command = ["bash", str(tmp_path / ".ci" / "setup_env.sh")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def fake_python(tmp_path: Path, version: str) -> Path:
    """A Python that tells its version and cannot do anything else."""
    text = f'#!/bin/sh\ncase "$2" in *version_info*) echo {version} ;; *) exit 1 ;; esac\n'
    return executable(tmp_path / "python", text)


@pytest.mark.parametrize("version", ["2.7", "3.9"])
def test_set_up_names_a_python_that_is_too_old(tmp_path, version):
    done = set_up(tmp_path, fake_python(tmp_path, version))
    assert done.returncode == 1
    assert "Python 3.11 or newer is needed" in done.stderr and f"({version})" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_set_up_says_when_there_is_no_python(tmp_path):
    done = set_up(tmp_path, tmp_path / "no-such-python")
    assert done.returncode == 1
    assert "no-such-python (not found)" in done.stderr


@pytest.mark.parametrize(("user", "ci", "installs"), [("0", "true", True), ("0", "", False), ("1000", "true", False)])
def test_set_up_without_venv_installs_a_package_only_as_root_in_ci(tmp_path, user, ci, installs):
    tools = tmp_path / "bin"
    tools.mkdir()
    executable(tools / "id", f"#!/bin/sh\necho {user}\n")
    executable(tools / "apt-get", f'#!/bin/sh\necho "$@" >> {tmp_path}/apt.log\n')
    done = set_up(tmp_path, fake_python(tmp_path, "3.12"), CI=ci, PATH=f"{tools}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "sudo apt install python3-venv" in done.stderr
    log = tmp_path / "apt.log"
    assert log.exists() == installs
    if installs:
        assert "install -y -qq python3.12-venv" in log.read_text()
