"""A real HTTP server of this project in a thread, for tests, and a model small enough to be made on the spot."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import torch
import uvicorn

from mtp import ModelConfig, Transformer
from mtp.server.app import build_app

HTTP = httpx.Client(timeout=60, verify=False, trust_env=False)
"""Plain httpx, apart from this project's own client; one for all tests, since making one takes a while."""


def tiny_model(seed: int = 0) -> Transformer:
    """Two layers and two MTP modules, untrained: at temperature 1 it accepts some drafts and rejects others."""
    torch.manual_seed(seed)
    config = ModelConfig(d_model=32, n_layers=2, n_heads=2, d_ff=64, n_mtp=2, max_length=256)
    return Transformer(config).eval().fold()


@contextmanager
def running(app) -> Iterator[str]:
    """Serve an ASGI application on a free port; gives the address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


@contextmanager
def serving(model: Transformer, k: int, **options) -> Iterator[str]:
    """Serve a model; see build_app for the options."""
    with running(build_app(model, k=k, **options)) as url:
        yield url


def stream(url: str, body: dict, path: str = "/v1/completions") -> list[dict]:
    """The events of a streaming request, read by means of httpx alone; the last one must be [DONE]."""
    with HTTP.stream("POST", url + path, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def text_of(events: list[dict]) -> str:
    """The text of a completion's stream."""
    return "".join(choice["text"] for event in events for choice in event["choices"])


def counters(url: str) -> dict[str, float]:
    """/metrics as {name with labels but the model's: value}."""
    lines = [line for line in HTTP.get(url + "/metrics").text.splitlines() if not line.startswith("#")]
    pairs = (re.sub(r',?model_name="\w+",?', "", line).replace("{}", "").rsplit(" ", 1) for line in lines)
    return {name: float(value) for name, value in pairs if "_created" not in name}
