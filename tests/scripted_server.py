"""A server that behaves as badly as told: raw HTTP, so that it can break off anywhere.

`script(number, body)` says what becomes of the number-th completion request (from 0): an `Answer`.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@dataclass
class Answer:
    """Parts of a body, sent one by one, and how it ends."""

    parts: list[bytes] = field(default_factory=list)
    status: int = 200
    end: str = "clean"  # or "cut" (the connection breaks), "silence" (nothing more comes), "drip" (comments for ever)


def event(value: dict | str) -> bytes:
    data = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f"data: {data}\n\n".encode()


def chunk(text: str, finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish_reason}]})


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}})


DONE = event("[DONE]")


def good(text: str = "abcd", tokens: int = 4) -> Answer:
    return Answer([chunk(text[:1]), chunk(text[1:], "length"), usage(tokens), DONE])


class ScriptedServer:
    """Use as a context manager. `metrics` is the page's text, or a function that makes it; None answers 404.

    `requests` collects what came in: (method and path, headers in lower case, body).
    """

    def __init__(
        self, script: Callable[[int, dict], Answer], metrics: str | Callable[[], str] | None = None, model: str = "m"
    ):
        self.script, self.metrics, self.model = script, metrics, model
        self.requests: list[tuple[str, dict[str, str], dict]] = []
        self.completions = 0
        self.most_at_once = self._at_once = 0

    def __enter__(self) -> ScriptedServer:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        ready.wait()
        return self

    def __exit__(self, *_) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        ready.set()
        await self._stop.wait()
        server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._answer(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has left
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = json.loads(await reader.readexactly(int(headers.get("content-length", 0))) or b"{}")
        target = first.rsplit(" ", 1)[0]
        self.requests.append((target, headers, body))
        if target == "GET /v1/models":
            self._plain(writer, 200, json.dumps({"data": [{"id": self.model}]}).encode())
        elif target == "GET /metrics":
            page = self.metrics() if callable(self.metrics) else self.metrics
            self._plain(writer, 404 if page is None else 200, (page or "not here").encode())
        else:
            number, self.completions = self.completions, self.completions + 1
            self._at_once += 1
            self.most_at_once = max(self.most_at_once, self._at_once)
            try:
                await self._completion(writer, self.script(number, body))
            finally:
                self._at_once -= 1
        await writer.drain()

    async def _completion(self, writer: asyncio.StreamWriter, answer: Answer) -> None:
        if answer.status != 200 or not answer.parts[0].startswith(b"data:") and answer.end == "clean":
            self._plain(writer, answer.status, b"".join(answer.parts))
            return
        writer.write(HEAD)
        for part in answer.parts:
            writer.write(b"%x\r\n%b\r\n" % (len(part), part))
            await writer.drain()
            await asyncio.sleep(0.005)  # so that parts arrive apart
        if answer.end == "silence":
            await self._stop.wait()
        while answer.end == "drip":
            writer.write(b"3\r\n:\n\n\r\n")
            await writer.drain()
            await asyncio.sleep(0.02)
        if answer.end == "clean":
            writer.write(b"0\r\n\r\n")

    @staticmethod
    def _plain(writer: asyncio.StreamWriter, status: int, body: bytes) -> None:
        writer.write(b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (status, len(body), body))
