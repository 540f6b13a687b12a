"""The OpenAI API's requests and responses, as far as this server speaks it: checked fields in, JSON values out."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..data import END_OF_FILE, decode_text, encode
from ..sampling import Sampling
from .engine import TokenLogprobs

MAX_LOGPROBS = 5  # OpenAI's limit for /v1/completions

# Fields that would change the output, and the values at which they do nothing.
_UNSUPPORTED = {
    "n": (1,), "best_of": (1,), "echo": (False,), "suffix": ("",), "stop": ("", []), "logit_bias": ({},),
    "presence_penalty": (0,), "frequency_penalty": (0,), "repetition_penalty": (1,), "min_p": (0,), "tools": ([],),
}  # fmt: skip


class RequestError(Exception):
    """A request that cannot be served, with the HTTP status and the field at fault."""

    def __init__(self, message: str, param: str | None = None, status: int = 400):
        super().__init__(message)
        self.param, self.status = param, status


@dataclass
class Generate:
    """One request, checked."""

    prompt: list[int]
    max_tokens: int
    sampling: Sampling
    seed: int | None
    eos: int | None
    logprobs: int | None
    stream: bool
    include_usage: bool
    chat: bool
    model: str
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    created: int = field(default_factory=lambda: int(time.time()))

    # Response bodies -------------------------------------------------------------------------------------------------

    def whole(self, output: Sequence[int], finish_reason: str, logprobs: Sequence[TokenLogprobs] | None) -> dict:
        """The response to a request that does not stream."""
        text = self._text(output)
        said = {"message": {"role": "assistant", "content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": _logprobs(logprobs), "finish_reason": finish_reason}
        return self._body([choice], "chat.completion") | {"usage": self._usage(len(output))}

    def chunk(self, new: Sequence[int], finish_reason: str | None) -> dict:
        """One event of a stream."""
        text = self._text(new)
        said = {"delta": {"content": text}} if self.chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish_reason}
        return self._body([choice], "chat.completion.chunk")

    def role_chunk(self) -> dict:
        """What opens a chat's stream."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
        return self._body([choice], "chat.completion.chunk")

    def usage_chunk(self, generated: int) -> dict:
        """What closes a stream with `stream_options.include_usage`: no choices, the token counts."""
        return self._body([], "chat.completion.chunk") | {"usage": self._usage(generated)}

    def _body(self, choices: list, chat_object: str) -> dict:
        prefix, kind = ("chatcmpl", chat_object) if self.chat else ("cmpl", "text_completion")
        return {
            "id": f"{prefix}-{self.id}", "object": kind, "created": self.created, "model": self.model,
            "choices": choices,
        }  # fmt: skip

    def _text(self, ids: Sequence[int]) -> str:
        return decode_text(token for token in ids if token != self.eos)

    def _usage(self, generated: int) -> dict:
        prompt = len(self.prompt)
        return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _logprobs(places: Sequence[TokenLogprobs] | None) -> dict | None:
    if places is None:
        return None
    return {
        "tokens": [decode_text([place.token]) for place in places],
        "token_logprobs": [place.logprob for place in places],
        "top_logprobs": [{decode_text([token]): value for token, value in place.top.items()} for place in places],
        "text_offset": list(range(len(places))),  # one character a token
    }


def parse(body: object, *, chat: bool, model: str, vocab_size: int, max_length: int) -> Generate:
    """Check a request's JSON. Raises RequestError that names the field."""
    if not isinstance(body, dict):
        raise RequestError("the body must be a JSON object")
    if body.get("model") not in (None, model):
        raise RequestError(f"the model {body['model']!r} does not exist here, only {model!r}", "model", 404)
    for name, neutral in _UNSUPPORTED.items():
        if body.get(name) is not None and body[name] not in neutral:
            raise RequestError(f"{name}={body[name]!r} is not supported by this server", name)
    prompt = _chat_prompt(body.get("messages")) if chat else _prompt(body.get("prompt"), vocab_size)
    if not prompt:
        raise RequestError("the prompt is empty: the first token is predicted from at least one", "prompt")
    # A chat without a limit may go on to the model's end, a completion has 16 tokens: OpenAI's defaults.
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    max_tokens = _whole(body, limit, 1, default=max(1, max_length - len(prompt)) if chat else 16)
    if len(prompt) + max_tokens > max_length:
        raise RequestError(
            f"this model's maximum context length is {max_length} tokens; the prompt has {len(prompt)} and "
            f"{limit} asks for {max_tokens} more",
            limit,
        )
    stream = _flag(body, "stream")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict) or (options and not stream):
        raise RequestError("stream_options is an object, and only with stream=true", "stream_options")
    logprobs = _whole(body, "logprobs", 0, MAX_LOGPROBS) if not chat else None
    if (logprobs is not None and stream) or (chat and body.get("logprobs")):
        raise RequestError("logprobs come with /v1/completions and stream=false only", "logprobs")
    top_k = _whole(body, "top_k", -1)  # vLLM's extension; -1 and 0 switch it off
    try:
        sampling = Sampling(_number(body, "temperature", 1.0), top_k if (top_k or 0) > 0 else None, body.get("top_p"))
    except ValueError as error:
        raise RequestError(str(error), "temperature" if "temperature" in str(error) else "top_p") from error
    return Generate(
        prompt, max_tokens, sampling, _whole(body, "seed", -(2**63), 2**63 - 1),
        None if _flag(body, "ignore_eos") else END_OF_FILE,
        logprobs, stream, _flag(options, "include_usage"), chat, model,
    )  # fmt: skip


def _prompt(prompt: object, vocab_size: int) -> list[int]:
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return encode(prompt)
    if isinstance(prompt, list) and all(isinstance(token, int) and 0 <= token < vocab_size for token in prompt):
        return prompt
    raise RequestError(f"prompt must be one text, or one list of ids below {vocab_size}", "prompt")


def _chat_prompt(messages: object) -> list[int]:
    if not isinstance(messages, list) or not all(
        isinstance(message, dict) and isinstance(message.get("content"), str) for message in messages
    ):
        raise RequestError("messages must be a list of objects with a text as content", "messages")
    # The model has seen no chats: it continues the text, whoever said it.
    return encode("\n".join(message["content"] for message in messages))


def _whole(body: dict, name: str, low: int, high: int | None = None, default: int | None = None) -> int | None:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or value < low or (high is not None and value > high):
        limits = f"at least {low}" if high is None else f"from {low} to {high}"
        raise RequestError(f"{name} must be a whole number {limits}, got {value!r}", name)
    return value


def _number(body: dict, name: str, default: float) -> float:
    value = body.get(name)
    return default if value is None else value


def _flag(body: dict, name: str) -> bool:
    value = body.get(name)
    if value not in (None, True, False):
        raise RequestError(f"{name} must be true or false, got {value!r}", name)
    return bool(value)
