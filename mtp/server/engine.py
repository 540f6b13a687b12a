"""The thread that decodes: requests go in, steps (a few new tokens at a time) come out.

Greedy requests of the same length limit that wait together run as one batch. Sampled ones run alone, so that a seed
decides a request's output whoever else is served. A batch is static: a request that arrives later waits for its end.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..decoding import decode
from ..drafters import NativeMTP
from ..generation import Round
from ..model import Transformer
from ..proposer import Context
from ..sampling import Sampling
from .counters import ServerCounters

GATHER_SECONDS = 0.01
"""A batch stays open until nobody has come for so long: requests sent together arrive some milliseconds apart."""


@dataclass(frozen=True)
class Step:
    """New tokens of one request; `finish_reason` ("stop" or "length") on its last step."""

    tokens: list[int]
    finish_reason: str | None = None
    logprobs: list[TokenLogprobs] | None = None  # of the whole output, on the last step, where asked for


@dataclass(frozen=True)
class TokenLogprobs:
    """The target's log probability of an output token and of the likeliest ones at its place, in nats."""

    token: int
    logprob: float
    top: dict[int, float]


@dataclass(eq=False)
class Job:
    """One request. `deliver` is called from the engine's thread with each Step, or once with an exception."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    deliver: Callable[[Step | Exception], None]
    eos: int | None = None
    seed: int | None = None
    logprobs: int | None = None  # how many of the likeliest tokens to report for each place
    output: list[int] = field(default_factory=list)
    finished: bool = False
    cancelled: bool = False

    def cancel(self) -> None:
        """Nobody reads any more: do not start it, and stop decoding once all of its batch are cancelled."""
        self.cancelled = True

    @property
    def group(self):
        """Jobs of equal groups may share a batch."""
        return (self.max_tokens, self.eos) if self.sampling.greedy else self


class _Abandoned(Exception):
    """All requests of a batch were cancelled."""


class Engine:
    """Decodes jobs with `k` drafts a round (0: plain autoregression), up to `max_batch` at a time.

    Use as a context manager, or `start` and `stop`. Raises ValueError for a k that the model cannot draft.
    """

    def __init__(self, model: Transformer, k: int, counters: ServerCounters, max_batch: int = 8):
        if max_batch < 1:
            raise ValueError(f"max_batch must be at least 1, got {max_batch}")
        self.model, self.k, self.counters, self.max_batch = model, k, counters, max_batch
        self.proposer = NativeMTP(model, k, recycle=True) if k else None
        self._waiting: list[Job] = []
        self._changed = threading.Condition()
        self._stopping = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Engine:
        self.start()
        return self

    def __exit__(self, *_) -> None:
        self.stop()

    def start(self) -> None:
        self._stopping = False
        self._thread = threading.Thread(target=self._work, name="mtp-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the running batch end early; those who wait get an error."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread:
            self._thread.join()

    def submit(self, job: Job) -> None:
        with self._changed:
            self._waiting.append(job)
            self.counters.waiting.set(len(self._waiting))
            self._changed.notify_all()

    # In the engine's thread ------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (batch := self._next_batch()) is not None:
            if not batch:
                continue
            self.counters.running.set(len(batch))
            try:
                self._decode(batch)
            except _Abandoned:
                pass
            except Exception as error:  # whatever it is, the requests must hear of it and the server go on
                for job in batch:
                    if not job.finished:
                        job.deliver(error)
            self.counters.running.set(0)  # those that were given up or failed
        for job in self._waiting:
            job.deliver(RuntimeError("the server is shutting down"))

    def _next_batch(self) -> list[Job] | None:
        """The oldest job and those that may share its batch; None once the engine stops."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._stopping)
            while self._waiting and self._waiting[0].sampling.greedy and len(self._waiting) < self.max_batch:
                if self._stopping or not self._changed.wait(GATHER_SECONDS):
                    break
            if self._stopping:
                return None
            self._waiting = [job for job in self._waiting if not job.cancelled]
            batch = [job for job in self._waiting if job.group == self._waiting[0].group][: self.max_batch]
            self._waiting = [job for job in self._waiting if job not in batch]
            self.counters.waiting.set(len(self._waiting))
            return batch

    def _decode(self, batch: list[Job]) -> None:
        first = batch[0]
        generator = torch.Generator().manual_seed(random.getrandbits(63) if first.seed is None else first.seed)
        self.counters.prompt_tokens.inc(sum(len(job.prompt) for job in batch))

        def begin(context: Context) -> None:
            self.counters.generated.inc(len(batch))
            for row, job in enumerate(batch):
                self._deliver(job, [int(context.tokens[row, context.known[row] - 1])])

        def go_on(record: Round, context: Context, _cache) -> None:
            self.counters.count(record)
            for row in record.rows:
                known = context.known[row.row]
                self._deliver(batch[row.row], context.tokens[row.row, known - row.emitted : known].tolist())
            if self._stopping:
                raise RuntimeError("the server is shutting down")
            if all(job.cancelled or job.finished for job in batch) and not all(job.finished for job in batch):
                raise _Abandoned

        decode(
            self.model, [job.prompt for job in batch], self.proposer, max_new_tokens=first.max_tokens,
            sampling=first.sampling, eos=first.eos, generator=generator, on_start=begin, on_round=go_on,
        )  # fmt: skip

    def _deliver(self, job: Job, new: list[int]) -> None:
        job.output += new
        ended = job.eos is not None and new[-1] == job.eos
        if not ended and len(job.output) < job.max_tokens:
            job.deliver(Step(new))
            return
        reason = "stop" if ended else "length"
        logprobs = None if job.logprobs is None else self.token_logprobs(job.prompt, job.output, job.logprobs)
        job.finished = True
        # Counted before it is told: whoever has the last token finds the request in the counters.
        self.counters.success[reason].inc()
        self.counters.running.dec()
        job.deliver(Step(new, reason, logprobs))

    @torch.inference_mode()
    def token_logprobs(self, prompt: list[int], output: list[int], top: int) -> list[TokenLogprobs]:
        """What the target thinks of each output token (temperature 1), by one pass over prompt and output."""
        ids = torch.tensor([prompt + output[:-1]], device=self.model.device)  # (1, T)
        hidden = self.model.forward(ids, self.model.new_cache(1, ids.shape[1])).hidden[0, len(prompt) - 1 :]
        logprobs = torch.log_softmax(self.model.head(hidden), -1)  # (n, V)
        best = logprobs.topk(top, -1)
        return [
            TokenLogprobs(token, logprobs[place, token].item(), dict(zip(ids, values, strict=True)))
            for place, (token, ids, values) in enumerate(
                zip(output, best.indices.tolist(), best.values.tolist(), strict=True)
            )
        ]
