"""Many machines: a real Dask scheduler and two workers, started from the command line in processes of their own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from test_end_to_end import RELEASE, ROOT, grade, make_class, rows


def dask(what, scheduler_file, folder, *options):
    command = [sys.executable, "-m", f"distributed.cli.dask_{what}", "--scheduler-file", str(scheduler_file), *options]
    with (folder / f"{what}-{time.monotonic_ns()}.log").open("wb") as log:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__WORKER__DAEMON": "False"}
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True)


@pytest.fixture
def cluster(tmp_path):
    """(address, worker processes)"""
    scheduler_file = tmp_path / "scheduler.json"
    scheduler = dask("scheduler", scheduler_file, tmp_path, "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
    address, deadline = None, time.monotonic() + 60
    while address is None and time.monotonic() < deadline:
        time.sleep(0.1)
        with contextlib.suppress(OSError, ValueError):  # not there yet, or half written
            address = json.loads(scheduler_file.read_text())["address"]
    assert address, "the scheduler did not come up"
    options = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
    workers = [dask("worker", scheduler_file, tmp_path, *options) for _ in range(2)]
    yield address, workers
    for process in (*workers, scheduler):
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def scores(out):
    wanted = ("status", "score", "propose", "accept", "verify", "decode", "flags", "file")
    return {student: {name: row[name] for name in wanted} for student, row in rows(out).items()}


def test_a_cluster_that_loses_a_worker_gives_what_this_machine_gives(cluster, tmp_path):
    address, workers = cluster
    make_class.make(RELEASE, tmp_path / "inbox")
    log = tmp_path / "far" / "log.jsonl"
    command = [sys.executable, "-m", "grading", "grade", str(tmp_path / "inbox"), "--out", str(tmp_path / "far")]
    process = subprocess.Popen(
        [*command, "--seed", "7", "--scheduler", address], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text("utf-8").count("\n") >= 4) and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(workers[0].pid, signal.SIGKILL)
    printed = process.communicate(timeout=240)[0].decode()
    assert process.returncode == 0, printed
    grade(tmp_path / "inbox", tmp_path / "near", "--seed", "7")
    assert scores(tmp_path / "far") == scores(tmp_path / "near")
    logged = [json.loads(line)["student_id"] for line in log.read_text("utf-8").splitlines()]
    assert sorted(logged) == sorted(rows(tmp_path / "near")), "a row was lost or doubled"


def test_no_scheduler_is_said_with_what_to_start(tmp_path):
    make_class.make(RELEASE, tmp_path / "inbox")
    done = grade(tmp_path / "inbox", tmp_path / "out", "--scheduler", "tcp://127.0.0.1:9", check=False)
    assert done.returncode == 2 and "dask worker" in done.stderr and "Traceback" not in done.stderr
