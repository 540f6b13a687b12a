"""The labs find `mtp/` wherever they are opened, and say what to do where they cannot."""

import json
import subprocess
import sys
import zipfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from grading.chapter import ROOT
from grading.release.labs import labs, refresh_labs, refreshed
from mtp.packing import pack

LABS = labs()
CELLS = {path.name: json.loads(path.read_text("utf-8"))["cells"] for path in LABS}
SETUP = {name: next(cell for cell in cells if cell["id"] == "setup") for name, cells in CELLS.items()}
# the cell, and where it found the package
ASK = "\nimport mtp\nprint('FOUND', Path(mtp.__file__).resolve().parent.parent)\n"


def run_setup(lab: str, folder: Path, change=lambda source: source, before: str = "") -> subprocess.CompletedProcess:
    """A lab's set-up cell in a fresh Python in a folder."""
    folder.mkdir(exist_ok=True)
    source = before + change("".join(SETUP[lab]["source"])) + ASK
    command = [sys.executable, "-P", "-c", source]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)


def found(done: subprocess.CompletedProcess) -> Path:
    assert done.returncode == 0, done.stderr
    return Path(done.stdout.split("FOUND ")[1].strip())


@pytest.fixture(scope="module")
def packed(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("pack") / "mtp-lab.zip"
    pack(out)
    return out


def test_there_are_labs_and_all_have_the_same_setup():
    assert {path.name for path in LABS} == {"35_native_mtp_lab.ipynb", "68_speculative_decoding_benchmark.ipynb"}
    assert len({"".join(cell["source"]) for cell in SETUP.values()}) == 1


@pytest.mark.parametrize("lab", SETUP)
def test_in_a_clone_the_package_is_found_above(lab):
    assert found(run_setup(lab, ROOT / "notebooks")) == ROOT


def test_one_file_beside_the_notebook_is_enough(packed, tmp_path):
    (tmp_path / "mtp-lab (1).zip").write_bytes(packed.read_bytes())
    assert found(run_setup(LABS[0].name, tmp_path)) == tmp_path
    assert (tmp_path / "mtp" / "checkpoints" / "native-mtp.safetensors").stat().st_size > 1 << 20


def test_from_a_public_repository_it_is_downloaded(packed, tmp_path):
    """A server in GitHub's stead: the archive's members lie below a folder with the branch's name."""
    site, work = tmp_path / "site", tmp_path / "work"
    archive = site / "owner" / "name" / "archive" / "refs" / "heads" / "main.zip"
    archive.parent.mkdir(parents=True)
    with zipfile.ZipFile(packed) as source, zipfile.ZipFile(archive, "w") as target:
        for name in source.namelist():
            target.writestr(f"name-main/{name}", source.read(name))
        target.writestr("name-main/README.md", "not wanted")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=site))
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/owner/name"
    try:
        done = run_setup(LABS[0].name, work, lambda text: text.replace('REPOSITORY = ""', f'REPOSITORY = "{address}"'))
    finally:
        server.shutdown()
    assert found(done) == work
    assert sorted(path.name for path in work.iterdir()) == ["mtp"]


def test_on_colab_the_learner_is_asked_for_the_file(packed, tmp_path):
    before = (
        "import sys, types\n"
        "colab = types.ModuleType('google.colab')\n"
        f"colab.files = types.SimpleNamespace(upload=lambda: {{'mtp-lab.zip': open({str(packed)!r}, 'rb').read()}})\n"
        "sys.modules['google'] = types.ModuleType('google')\nsys.modules['google.colab'] = colab\n"
    )
    done = run_setup(LABS[0].name, tmp_path, before=before)
    assert found(done) == tmp_path and "mtp-lab.zip" in done.stdout


def test_elsewhere_it_says_which_file_to_bring(tmp_path):
    done = run_setup(LABS[0].name, tmp_path)
    assert done.returncode != 0
    assert "mtp-lab.zip" in done.stderr and "Traceback" not in done.stderr


def test_members_that_climb_out_stay_where_they_are(tmp_path):
    with zipfile.ZipFile(tmp_path / "mtp-lab.zip", "w") as archive:
        archive.writestr("mtp/__init__.py", "")
        archive.writestr("mtp/../../escaped.py", "")
    run_setup(LABS[0].name, tmp_path)
    assert not (tmp_path.parent / "escaped.py").exists() and (tmp_path / "mtp" / "__init__.py").exists()


def test_packing_gives_the_same_bytes_and_nothing_stray(packed, tmp_path):
    names = pack(tmp_path / "again.zip")
    assert (tmp_path / "again.zip").read_bytes() == packed.read_bytes()
    tracked = subprocess.run(["git", "ls-files", "mtp"], cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode == 0:
        assert set(tracked.stdout.split()) <= set(names)
    assert not any("__pycache__" in name for name in names)


def test_a_labs_address_and_opening_follow_the_setting(tmp_path):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "source").mkdir()
    (tmp_path / "pyproject.toml").write_text('[tool.course]\nrepository = "https://github.com/me/it"\n', "utf-8")
    lab = tmp_path / "notebooks" / LABS[0].name
    lab.write_text(LABS[0].read_text("utf-8"), "utf-8")
    assert refresh_labs(tmp_path) == [lab] and refresh_labs(tmp_path) == []
    text = lab.read_text("utf-8")
    assert 'REPOSITORY = \\"https://github.com/me/it\\"' in text and f"blob/main/notebooks/{lab.name}" in text
    (tmp_path / "pyproject.toml").write_text('[tool.course]\nrepository = ""\n', "utf-8")
    assert refreshed(lab, tmp_path) == refreshed(LABS[0])
