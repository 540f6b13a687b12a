"""The HTTP side: routes, streaming, errors in OpenAI's form."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ..model import Transformer
from .counters import ServerCounters
from .engine import Engine, Job, Step
from .protocol import Generate, RequestError, parse

DISCONNECT_POLL_SECONDS = 0.2


def build_app(
    model: Transformer, *, k: int, name: str = "mtp", max_batch: int = 8, api_key: str | None = None
) -> Starlette:
    """An ASGI application that serves `model` with k drafts a round (0: none) under the model name `name`.

    With `api_key`, the /v1 routes want it as a bearer token. Raises ValueError for a k that the model cannot draft.
    """
    counters = ServerCounters(name, k)
    engine = Engine(model, k, counters, max_batch)
    limits = {"vocab_size": model.config.vocab_size, "max_length": model.config.max_length}

    @asynccontextmanager
    async def lifespan(_app) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop)

    async def health(_request: Request) -> Response:
        return Response()

    async def metrics(_request: Request) -> Response:
        return Response(counters.text(), media_type=CONTENT_TYPE_LATEST)

    async def models(request: Request) -> Response:
        _authorise(request, api_key)
        card = {"id": name, "object": "model", "owned_by": "mtp", "max_model_len": limits["max_length"]}
        return JSONResponse({"object": "list", "data": [card]})

    async def generate(request: Request) -> Response:
        _authorise(request, api_key)
        try:
            body = await request.json()
        except ValueError as error:
            raise RequestError(f"the body is not JSON: {error}") from error
        wanted = parse(body, chat=request.url.path.endswith("/chat/completions"), model=name, **limits)
        job, steps = _submit(engine, wanted)
        if wanted.stream:
            return _JobStream(job, _events(wanted, steps))
        return await _whole(request, wanted, job, steps)

    return Starlette(
        lifespan=lifespan,
        routes=[
            Route("/health", health),
            Route("/metrics", metrics),
            Route("/v1/models", models),
            Route("/v1/completions", generate, methods=["POST"]),
            Route("/v1/chat/completions", generate, methods=["POST"]),
        ],
        exception_handlers={RequestError: _refuse},
    )


class _JobStream(StreamingResponse):
    """A stream of server-sent events that gives its job up when the client has gone."""

    def __init__(self, job: Job, events: AsyncIterator[str]):
        super().__init__(events, media_type="text/event-stream")
        self.job = job

    async def __call__(self, scope, receive, send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.job.cancel()


def _submit(engine: Engine, wanted: Generate) -> tuple[Job, asyncio.Queue[Step | Exception]]:
    loop, steps = asyncio.get_running_loop(), asyncio.Queue()

    def deliver(step: Step | Exception) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(steps.put_nowait, step)

    job = Job(
        wanted.prompt, wanted.max_tokens, wanted.sampling, deliver, wanted.eos, wanted.seed, wanted.logprobs
    )  # fmt: skip
    engine.submit(job)
    return job, steps


async def _events(wanted: Generate, steps: asyncio.Queue[Step | Exception]) -> AsyncIterator[str]:
    generated = 0
    finished = False
    if wanted.chat:
        yield _event(wanted.role_chunk())
    while not finished:
        step = await steps.get()
        if isinstance(step, Exception):  # the status line has long been sent
            yield _event(_error(500, f"{type(step).__name__}: {step}"))
            break
        generated += len(step.tokens)
        finished = step.finish_reason is not None
        yield _event(wanted.chunk(step.tokens, step.finish_reason))
    if finished and wanted.include_usage:
        yield _event(wanted.usage_chunk(generated))
    yield "data: [DONE]\n\n"


async def _whole(request: Request, wanted: Generate, job: Job, steps: asyncio.Queue[Step | Exception]) -> Response:
    while True:
        try:
            step = await asyncio.wait_for(steps.get(), DISCONNECT_POLL_SECONDS)
        except asyncio.TimeoutError:  # noqa: UP041 - another class on Python 3.10
            if await request.is_disconnected():
                job.cancel()
                return Response(status_code=499)  # read by nobody
            continue
        if isinstance(step, Exception):
            return JSONResponse(_error(500, f"{type(step).__name__}: {step}"), 500)
        if step.finish_reason is not None:
            return JSONResponse(wanted.whole(job.output, step.finish_reason, step.logprobs))


def _event(value: dict) -> str:
    return f"data: {json.dumps(value, separators=(',', ':'))}\n\n"


def _error(status: int, message: str, param: str | None = None) -> dict:
    kind = {401: "authentication_error", 404: "not_found_error", 500: "server_error"}.get(
        status, "invalid_request_error"
    )
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


async def _refuse(_request: Request, error: RequestError) -> Response:
    return JSONResponse(_error(error.status, str(error), error.param), error.status)


def _authorise(request: Request, api_key: str | None) -> None:
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if api_key and not hmac.compare_digest(given.encode(), api_key.encode()):
        raise RequestError("a valid API key is needed: Authorization: Bearer …", status=401)
