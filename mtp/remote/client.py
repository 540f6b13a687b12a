"""A streaming client of an OpenAI-compatible server that times one request and names whatever goes wrong with it."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import time
from dataclasses import dataclass
from urllib.parse import urlsplit

import httpx

from .sse import event_data

API_KEY_VARIABLE = "OPENAI_API_KEY"
CONNECT_SECONDS = 10.0


class Fault(Exception):
    """Something went wrong with one request; `kind` is what it is counted under."""

    def __init__(self, kind: str, detail: str):
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail

    @property
    def server_is_gone(self) -> bool:
        """Whether the next request is likely to meet the same fault."""
        return self.kind in (UNREACHABLE, TIMEOUT)


UNREACHABLE, TIMEOUT, CUT, MALFORMED, NO_USAGE, SERVER_ERROR, EMPTY, NOT_SENT = (
    "unreachable", "timeout", "cut stream", "malformed stream", "no usage", "error in the stream", "empty output",
    "not sent",
)  # fmt: skip


@dataclass(frozen=True)
class RequestSettings:
    """What both servers are asked for; only the prompt changes from request to request."""

    max_tokens: int
    temperature: float
    seed: int
    top_k: int | None = None  # with ignore_eos, extensions that vLLM, SGLang and llama.cpp know
    top_p: float | None = None
    ignore_eos: bool = False
    chat: bool = False

    @property
    def path(self) -> str:
        return "/v1/chat/completions" if self.chat else "/v1/completions"

    def body(self, prompt: str, model: str, **more) -> dict:
        """The request's JSON; what is not set is left out, since servers differ in the extensions they know."""
        said = {"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}
        optional = {"top_k": self.top_k, "top_p": self.top_p, "ignore_eos": self.ignore_eos or None}
        return {
            "model": model, **said, "max_tokens": self.max_tokens, "temperature": self.temperature, "seed": self.seed,
            **{name: value for name, value in optional.items() if value is not None}, **more,
        }  # fmt: skip


@dataclass(frozen=True)
class Reply:
    """One completed request. Times are seconds of `time.perf_counter`."""

    text: str
    tokens: int  # output tokens as the server counted them (usage), EOS included
    prompt_tokens: int
    finish_reason: str | None
    sent: float
    first: float  # arrival of the first output
    last: float  # arrival of the last one
    chunks: int  # events with output: fewer than tokens where a round's tokens come together

    @property
    def ttft(self) -> float:
        """Seconds to the first token: queueing, prefill and the way there and back."""
        return self.first - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first: (t_last - t_first) / (n - 1); None for a single token.

        From the token count, not from the gaps between chunks: a chunk may bring several tokens.
        """
        return (self.last - self.first) / (self.tokens - 1) if self.tokens > 1 else None


class Client:
    """One server. Use as an async context manager.

    `url` is the server's root, with or without /v1. A request may take `timeout` seconds in all, whatever the server
    does. The key comes from OPENAI_API_KEY and is kept out of every message. Raises ValueError for an unusable URL.
    """

    def __init__(self, url: str, timeout: float):
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not an http address; write it like http://localhost:8000")
        if parts.username or parts.password:
            raise ValueError(f"no password in an address, it would be printed; set {API_KEY_VARIABLE} instead")
        try:
            parts.port  # noqa: B018  (reading it checks it)
        except ValueError as error:
            raise ValueError(f"{url!r}: {error}") from error
        self.url = parts._replace(query="", fragment="").geturl().rstrip("/").removesuffix("/v1").rstrip("/")
        self.timeout = timeout
        self._key = os.environ.get(API_KEY_VARIABLE) or None
        if self._key and not self._key.isascii():
            raise ValueError(f"{API_KEY_VARIABLE} has characters other than ASCII: no key of a server has")
        # A proxy from the environment is for addresses elsewhere; few people add localhost to NO_PROXY.
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {self._key}"} if self._key else {},
            timeout=httpx.Timeout(timeout, connect=min(CONNECT_SECONDS, timeout)),
            limits=httpx.Limits(max_connections=None),
            trust_env=not _is_local(parts.hostname),
            verify=parts.scheme == "https",  # loading certificates takes time that plain HTTP need not spend
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def model_name(self) -> str:
        """The first model that the server lists. Raises Fault."""
        try:
            return json.loads(await self.get("/v1/models"))["data"][0]["id"]
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise Fault(MALFORMED, f"{self.url}/v1/models lists no model; name it with --model") from error

    async def get(self, path: str) -> str:
        """The body of a GET. Raises Fault."""
        return await self._guarded(self._get(path))

    async def complete(self, body: dict, path: str) -> dict:
        """A request that does not stream; returns the response's JSON. Raises Fault."""
        text = await self._guarded(self._post(path, body))
        try:
            return json.loads(text)
        except ValueError as error:
            raise Fault(MALFORMED, f"the response is not JSON: {_short(text)}") from error

    async def stream(self, body: dict, path: str) -> Reply:
        """Send one streaming request and time its output. Raises Fault, at the latest after `timeout` seconds."""
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        return await self._guarded(self._stream(body, path))

    async def _guarded(self, work):
        """Run a request within its time and give every way of failing its name."""
        try:
            return await asyncio.wait_for(work, self.timeout)
        except (asyncio.TimeoutError, httpx.ReadTimeout, httpx.WriteTimeout) as error:  # noqa: UP041 - apart on 3.10
            raise Fault(TIMEOUT, f"{self.url} did not finish within {self.timeout:g} s") from error
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Fault(UNREACHABLE, self._without_key(f"{self.url}: {error or 'no connection'}")) from error
        except httpx.HTTPError as error:  # the connection ended in the middle of a response, or spoke no HTTP
            raise Fault(CUT, self._without_key(str(error) or type(error).__name__)) from error

    async def _get(self, path: str) -> str:
        response = await self._http.get(self.url + path)
        self._check(response.status_code, response.text)
        return response.text

    async def _post(self, path: str, body: dict) -> str:
        response = await self._http.post(self.url + path, json=body)
        self._check(response.status_code, response.text)
        return response.text

    async def _stream(self, body: dict, path: str) -> Reply:
        sent = time.perf_counter()
        async with self._http.stream("POST", self.url + path, json=body) as response:
            if response.status_code >= 300:
                self._check(response.status_code, (await response.aread()).decode("utf-8", errors="replace"))
            collected = _Collected()
            async for data in event_data(response.aiter_bytes()):
                if data == "[DONE]":
                    return collected.reply(sent)
                collected.add(data, time.perf_counter(), self._without_key)
        if collected.is_complete:  # transformers' server ends its streams so
            return collected.reply(sent)
        raise Fault(CUT, f"the stream ended after {collected.chunks} chunks without [DONE]")

    def _check(self, status: int, text: str) -> None:
        if status >= 300:
            raise Fault(f"HTTP {status}", self._without_key(_server_message(text)))

    def _without_key(self, message: str) -> str:
        return message.replace(self._key, "***") if self._key else message


class _Collected:
    """What a stream has brought so far."""

    def __init__(self):
        self.texts: list[str] = []
        self.chunks = 0
        self.first = self.last = 0.0
        self.finish_reason: str | None = None
        self.usage: dict = {}

    def add(self, data: str, now: float, redact) -> None:
        """Take one event. Raises Fault for what is not a chunk, or reports an error."""
        try:
            event = json.loads(data)
            if "error" in event:
                raise Fault(SERVER_ERROR, redact(_server_message(data)))
            self.usage = event.get("usage") or self.usage
            for choice in event.get("choices") or []:
                self._add_choice(choice, now)
        except (ValueError, TypeError, AttributeError) as error:
            raise Fault(MALFORMED, f"not a chunk of a completion: {redact(_short(data))}") from error

    def _add_choice(self, choice: dict, now: float) -> None:
        delta = choice.get("delta") or {}
        # A thinking model's tokens come under another name, and are tokens all the same.
        text = choice.get("text") or "".join(
            delta.get(name) or "" for name in ("reasoning_content", "reasoning", "content")
        )
        finished = choice.get("finish_reason")
        if delta.get("role") and not text and not finished:
            return  # opens a chat, and is no token
        # An empty text counts: it is a token without characters of its own (EOS, part of a UTF-8 character).
        self.texts.append(text)
        self.chunks += 1
        self.first = self.first or now
        self.last = now
        self.finish_reason = finished or self.finish_reason

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing, even without the closing [DONE]."""
        return self.finish_reason is not None and bool(self.usage)

    def reply(self, sent: float) -> Reply:
        tokens = self.usage.get("completion_tokens")
        if not self.chunks:
            raise Fault(EMPTY, "the stream brought no output")
        if not isinstance(tokens, int) or tokens < 1:
            raise Fault(NO_USAGE, "the stream ended without token counts (stream_options.include_usage): no TPOT")
        return Reply(
            "".join(self.texts), tokens, self.usage.get("prompt_tokens") or 0, self.finish_reason, sent,
            self.first, self.last, self.chunks,
        )  # fmt: skip


def _server_message(text: str) -> str:
    """The message inside an error response: OpenAI's {"error": {"message"}}, or what others write."""
    try:
        value = json.loads(text)
        for name in ("error", "message", "detail"):
            if isinstance(value, dict) and value.get(name):
                value = value[name]
    except ValueError:
        return _short(text) or "no message"
    return _short(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _short(text: str, length: int = 200) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[:length] + "…"


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
