"""The same unit of work on a Dask cluster: every task carries all it needs, workers need only this package.

A Dask worker unpickles what other processes send it, so learners' code never runs in one: each drives a judge server
of its own, with its own sandbox, and returns plain text.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

from grading import chapter
from grading.intake.inbox import File, Handed
from grading.judge.pool import JudgeError, Judges
from grading.plan import Plan
from grading.result import UNREADABLE, Result
from grading.unit import NOT_JUDGED, Course, Prepared, finish, prepare

ATTEMPTS = 5  # workers that may be lost under one submission before it is given up
CONNECT_SECONDS = 20

_courses: dict[str, tuple[Course, Judges]] = {}  # of this worker process, by digest


class SchedulerError(RuntimeError):
    """No scheduler answers, or no worker is there; the message says which address and what to start."""


def pack_course(course: Course) -> dict:
    return {"name": course.chapter.name, "notebook": course.chapter.notebook, "release": course.release}


def _course(packed: dict, sandbox: str) -> tuple[Course, Judges]:
    """This process's judge for a course; its source is written to a private folder, since workers have no course."""
    digest = hashlib.sha256(json.dumps([packed, sandbox], sort_keys=True).encode()).hexdigest()
    known = _courses.get(digest)
    if known is None or not known[1].alive():
        folder = tempfile.mkdtemp(prefix="grading-")
        source = Path(folder) / f"{packed['name']}.ipynb"
        source.write_text(json.dumps(packed["notebook"]), "utf-8")
        course = Course(chapter.load(source), packed["release"], source)
        known = _courses[digest] = (course, Judges(source, sandbox))
    return known


def grade_one(packed: dict, handed: dict, seed: int, sandbox: str) -> str:
    """The task: grades one submission in this process's sandbox. Returns JSON of the result and of what was judged."""
    course, judges = _course(packed, sandbox)
    files = tuple(File(**file) for file in handed["files"])
    lists = {name: tuple(handed[name]) for name in ("flags", "others")}
    one = Handed(**handed | lists | {"files": files})
    prepared = prepare(course, one, seed)
    if isinstance(prepared, Result):
        return json.dumps({"result": prepared.to_json(), "prepared": None})
    ((_, reply),) = judges.run([(one.student_id, prepared.plan, seed)])
    result = finish(course, prepared, reply, seed, sandbox)
    return json.dumps({"result": result.to_json(), "prepared": asdict(prepared)})


def _unpack(text: str) -> tuple[Prepared | None, Result]:
    data = json.loads(text)
    held = data["prepared"]
    if held is not None:
        held = Prepared(**held | {"plan": Plan.from_json(held["plan"]), "flags": tuple(held["flags"])})
    return held, Result.from_json(data["result"])


def judged_on_cluster(
    address: str, course: Course, handed: Iterable[Handed], seed: int, sandbox: str
) -> Iterator[tuple[Handed, Prepared | None, Result]]:
    """Grades submissions on the cluster behind a scheduler's address; yields each as it is done.

    A submission whose worker is lost goes to another one. Raises SchedulerError, JudgeError.
    """
    from distributed import Client, as_completed
    from distributed.scheduler import KilledWorker

    try:
        client = Client(address, timeout=CONNECT_SECONDS)
        client.wait_for_workers(1, timeout=CONNECT_SECONDS)
    except (OSError, TimeoutError, ValueError) as error:
        raise SchedulerError(
            f"no Dask cluster at {address} ({error}); start one: `dask scheduler`, and on each machine "
            f"`dask worker {address} --nthreads 1 --nworkers auto` where this package can be imported"
        ) from None
    with client:
        packed = pack_course(course)
        futures = {}
        for one in handed:
            task = client.submit(grade_one, packed, asdict(one), seed, sandbox, pure=False, retries=ATTEMPTS)
            futures[task.key] = (task, one)
        for future in as_completed([task for task, _ in futures.values()]):
            one = futures.pop(future.key)[1]
            try:
                prepared, result = _unpack(future.result())
            except JudgeError:
                raise
            except (KilledWorker, RuntimeError, OSError) as error:
                common = {"seed": seed, "max_score": course.chapter.max_score}
                prepared, result = None, Result(one.student_id, UNREADABLE, reason=f"{NOT_JUDGED}{error}", **common)
            yield one, prepared, result
