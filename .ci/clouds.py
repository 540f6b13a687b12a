"""Run the notebooks on the versions that clouds ship, each in a fresh environment: `make clouds`.

    python .ci/clouds.py [--only NAME]... [--keep DIR]

Makes a virtual environment for each row of ENVIRONMENTS, installs what that platform has, runs the release as
learners get it, the release solved, and the labs, and prints a table. Exits with 1 if a notebook fails, or if one
installs or changes a package there. A Python that this machine lacks is a row that says so, and is counted.
TORCH_INDEX_URL names a package index with torch builds, as for `make env`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
INSTALL_SECONDS, NOTEBOOK_SECONDS = 3600, 1800


@dataclass(frozen=True)
class Environment:
    """A platform's Python and packages. What is named without a version gets the newest that pip finds."""

    name: str
    python: str
    packages: tuple[str, ...]


# nbclient drives the kernel from outside and is no part of the platform; all else is what its notebooks can see.
ENVIRONMENTS = (
    # The oldest that requirements.txt allows, on the oldest Python that the linter holds the notebooks to.
    Environment(
        "oldest", "3.10", ("torch==2.4.0", "numpy==1.26.4", "matplotlib==3.8.0", "ipykernel==6.29.5", "ipython<8.19")
    ),
    # ModelScope's older CPU image, still built (modelscope/modelscope, docker/build_image.py); the newer, Python 3.12
    # with torch 2.10.0, lies between the rows below.
    Environment(
        "modelscope-py311", "3.11", ("torch==2.3.1", "numpy==1.26.4", "matplotlib==3.8.*", "ipykernel==6.29.5")
    ),
    # Colab's runtime 2026.01 (googlecolab/backend-info, pip-freeze.txt at bd8aaa4): its old IPython matters most.
    Environment(
        "colab-2026.01",
        "3.12",
        (
            "torch==2.9.0",
            "numpy==2.0.2",
            "matplotlib==3.10.0",
            "ipython==7.34.0",
            "ipykernel==6.17.1",
            "jupyter_client==7.4.9",
            "traitlets==5.7.1",
            "setuptools==75.2.0",
        ),
    ),
    # What CI has, on its own Python.
    Environment("ci", "3.11", ("torch==2.13.0", "numpy==2.4.6", "matplotlib==3.11.2", "ipykernel==7.4.0")),
    # The newest of everything, on the Python that Colab has had since August 2026 (googlecolab/colabtools#6081).
    Environment("newest", "3.13", ("torch", "numpy", "matplotlib", "ipykernel")),
)
SHOWN = ("torch", "numpy", "matplotlib", "ipython")


class Failed(Exception):
    """A step of an environment that did not come to its end; the text says which and why."""


def find_python(version: str) -> str | None:
    """A Python of that version: on PATH, else the newest of pyenv's."""
    if found := shutil.which(f"python{version}"):
        probe = subprocess.run([found, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], capture_output=True)
        if probe.stdout.decode().strip() == version:  # pyenv's shims exist for versions that are not switched on
            return found
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    installed = [path for path in versions.glob(f"{version}.*") if re.fullmatch(r"[\d.]+", path.name)]
    installed.sort(key=lambda path: int(path.name.rpartition(".")[2]))
    return str(installed[-1] / "bin" / "python") if installed else None


def call(what: str, command: list, seconds: float, **named) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, **named)
    except subprocess.TimeoutExpired:
        raise Failed(f"{what}: not done within {seconds} s") from None
    if done.returncode:
        raise Failed(f"{what}: {' '.join((done.stderr or done.stdout).split())[-400:]}")
    return done.stdout


def torch_index() -> list[str]:
    """Options for pip: where CPU builds of torch can be had. Without them PyPI's Linux builds bring CUDA along."""
    index = os.environ.get("TORCH_INDEX_URL", "")
    if not index and sys.platform == "linux":
        try:
            urllib.request.urlopen(urllib.request.Request(TORCH_CPU_INDEX + "/", method="HEAD"), timeout=5).close()
            index = TORCH_CPU_INDEX
        except OSError:
            print(f"note: {TORCH_CPU_INDEX} cannot be reached: PyPI's builds, several GB each", file=sys.stderr)
    return ["--extra-index-url", index] if index else []


def make(environment: Environment, python: str, folder: Path, index: list[str]) -> Path:
    """A fresh virtual environment with the platform's packages; the path of its Python."""
    call("venv", [python, "-m", "venv", str(folder)], 300)
    own = folder / "bin" / "python"
    pip = [str(own), "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check", "--no-compile"]
    # safetensors: every one of these platforms has it, and the labs read their checkpoint with it.
    call("pip", [*pip, *index, *environment.packages, "safetensors", "nbclient"], INSTALL_SECONDS)
    return own


def freeze(python: Path) -> dict[str, str]:
    """Package -> version, of all that is installed."""
    code = "import importlib.metadata as m, json; d = m.distributions()"
    code += "; print(json.dumps({one.name.lower(): one.version for one in d}))"
    return json.loads(call("versions", [str(python), "-c", code], 120))


def execute(python: Path, notebook: Path) -> dict:
    """What clouds_execute.py reports of a notebook, run in its own folder."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment["IPYTHONDIR"] = environment["JUPYTER_DATA_DIR"] = str(python.parents[1] / "jupyter")
    command = [str(python), str(ROOT / ".ci" / "clouds_execute.py"), notebook.name]
    text = call(notebook.name, command, NOTEBOOK_SECONDS, cwd=notebook.parent, env=environment)
    return json.loads(text.strip().rpartition("\n")[2])


def verdict(report: dict, *, unsolved: bool) -> str:
    """One cell of the table; it begins with ✓ or ✗. Unsolved, a notebook fails by its TODOs and by nothing else."""
    errors = report["errors"]
    wrong = [error for error in errors if not unsolved or error["name"] != "NotImplementedError"]
    if wrong:
        return f"✗ {wrong[0]['cell']}: {wrong[0]['name']}: {wrong[0]['value'][:120]}"
    if report["unseen"]:
        return f"✗ a figure is not shown, only its name: {', '.join(report['unseen'])}"
    if unsolved and not errors:
        return "✗ no TODO is left to do"
    if report["stderr"] and not unsolved:
        return f"✗ stderr in {report['stderr'][0]['cell']}: {report['stderr'][0]['text'][:120]}"
    return f"✓ {len(errors)} TODO" if unsolved else f"✓ {report['images']} figures, {report['seconds']:.0f} s"


def lay_out(folder: Path) -> dict[str, tuple[Path, bool]]:
    """Copies of what is to run: heading -> (notebook, whether it is unsolved)."""
    (release,) = (ROOT / "release").glob("*/*.ipynb")
    call("release", [sys.executable, "-m", "grading", "release", "--solved", str(folder / "solved")], 300, cwd=ROOT)
    (solved,) = (folder / "solved").rglob("*.ipynb")
    (folder / "release").mkdir()
    shutil.copy(release, folder / "release")
    found = {"release": (folder / "release" / release.name, True), "solved": (solved, False)}
    labs = [path for path in sorted((ROOT / "notebooks").glob("*.ipynb")) if path.name != release.name]
    shutil.copytree(ROOT / "mtp", folder / "labs" / "mtp", ignore=shutil.ignore_patterns("__pycache__"))
    for lab in labs:
        found[lab.stem] = (Path(shutil.copy(lab, folder / "labs")), False)
    return found


def row(environment: Environment, folder: Path, index: list[str], notebooks: dict) -> dict[str, str]:
    """Heading -> text of this environment's row of the table."""
    cells = {"environment": environment.name, "Python": environment.python}
    python = find_python(environment.python)
    if python is None:
        return cells | {"release": "skipped: this Python is not on this machine"}
    try:
        own = make(environment, python, folder / environment.name, index)
        before = freeze(own)
        version = call("version", [str(own), "-c", "import sys; print(sys.version.split()[0])"], 60).strip()
        cells |= {"Python": version} | {name: before.get(name, "-") for name in SHOWN}
        for heading, (notebook, unsolved) in notebooks.items():
            try:
                cells[heading] = verdict(execute(own, notebook), unsolved=unsolved)
            except Failed as failure:
                cells[heading] = f"✗ {failure}"
        after = freeze(own)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        cells["packages"] = f"✗ changed: {', '.join(changed)}" if changed else "✓ unchanged"
    except Failed as failure:
        cells["release"] = f"✗ {failure}"
    return cells


def table(rows: list[dict[str, str]]) -> str:
    """The rows in Markdown."""
    headings = list(dict.fromkeys(heading for cells in rows for heading in cells))
    lines = [headings, ["---"] * len(headings)] + [[cells.get(heading, "") for heading in headings] for cells in rows]
    return "\n".join("| " + " | ".join(text.replace("|", "/") for text in line) + " |" for line in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the notebooks on the versions that clouds ship.")
    names = [environment.name for environment in ENVIRONMENTS]
    parser.add_argument("--only", action="append", choices=names, help="only this environment; may be given again")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the environments in DIR, which must be new")
    arguments = parser.parse_args()
    if arguments.keep is not None and arguments.keep.exists():
        parser.error(f"--keep {arguments.keep}: it is there already; the environments must be fresh")
    folder = (arguments.keep or Path(tempfile.mkdtemp(prefix="clouds-"))).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    index, rows = torch_index(), []
    try:
        notebooks = lay_out(folder / "notebooks")
        for environment in ENVIRONMENTS:
            if arguments.only and environment.name not in arguments.only:
                continue
            started = time.monotonic()
            rows.append(row(environment, folder, index, notebooks))
            print(f"{environment.name}: {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
            if arguments.keep is None:
                shutil.rmtree(folder / environment.name, ignore_errors=True)  # one at a time: each may take GBs
    finally:
        if arguments.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    print(table(rows))
    texts = [text for cells in rows for text in cells.values()]
    failed, skipped = (sum(text.startswith(mark) for text in texts) for mark in ("✗", "skipped"))
    print(f"\n{len(rows)} environments, {failed} failures, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
