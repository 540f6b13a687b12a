"""PostgreSQL as gradebook: Debian's server, started here on loopback, in a folder of its own."""

import os
import pwd
import shutil
import socket
import subprocess
import time
from pathlib import Path

import pytest
from test_end_to_end import RELEASE, grade, make_class, rows

SERVERS = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"))


@pytest.fixture
def database(tmp_path):
    """The URL of an empty database. PostgreSQL refuses to run as root, so root starts it as another user."""
    if not SERVERS:
        assert os.environ.get("CI") != "true", "CI installs postgresql (.ci/setup_env.sh)"
        pytest.skip("no PostgreSQL server here: apt install postgresql")
    binaries, user = SERVERS[-1].parent, None
    folder = Path("/tmp", f"grading-postgres-{os.getpid()}")
    folder.mkdir()
    if os.geteuid() == 0:
        user = "postgres" if any(entry.pw_name == "postgres" for entry in pwd.getpwall()) else "nobody"
        shutil.chown(folder, user)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    data = str(folder / "data")
    common = dict(user=user, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    subprocess.run([binaries / "initdb", "-D", data, "-U", "grader", "-A", "trust"], check=True, **common)
    command = [binaries / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", str(folder)]
    server = subprocess.Popen(command, **common)
    try:
        create = [binaries / "createdb", "-h", "127.0.0.1", "-p", str(port), "-U", "grader", "gradebook"]
        deadline = time.monotonic() + 30
        while subprocess.run(create, **common).returncode and time.monotonic() < deadline:
            time.sleep(0.2)
        yield f"postgresql+psycopg://grader@127.0.0.1:{port}/gradebook"
    finally:
        server.terminate()
        server.wait(30)
        shutil.rmtree(folder)


def test_a_class_is_recorded_in_postgresql(database, tmp_path):
    make_class.make(RELEASE, tmp_path / "inbox")
    for student in ("08_loops_forever", "18_memorised_table"):  # speed
        shutil.rmtree(tmp_path / "inbox" / student)
    grade(tmp_path / "inbox", tmp_path / "out", "--db", database, "--seed", "3")
    assert not (tmp_path / "out" / "gradebook.db").exists()
    from nbgrader.api import Gradebook

    with Gradebook(database) as gradebook:
        held = {s.student_id: s.score for s in gradebook.assignment_submissions(RELEASE.stem)}
    graded = {student: float(row["score"]) for student, row in rows(tmp_path / "out").items() if row["score"]}
    assert held == graded and len(held) > 10
    assert " 0 graded now" in grade(tmp_path / "inbox", tmp_path / "out", "--db", database, "--seed", "3").stdout
