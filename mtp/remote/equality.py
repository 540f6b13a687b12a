"""Are the outputs of two servers the same at temperature 0, and where they are not, was it rounding?

Rounding depends on how many tokens a pass computes, so a server with MTP and one without may part where the two best
tokens nearly tie, and everything after that differs. Hence only the first difference counts, and the baseline is asked
once more, with log probabilities, how close the two best tokens were there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest

from .client import Fault, Reply, RequestSettings
from .measure import Side

ROUNDING_MARGIN = 0.5
"""Largest gap in nats between the two best tokens that a 16-bit server's rounding may turn round. A bf16 logit of 16
to 32 comes in steps of 1/8, and passes of different shapes differ by a few steps; fp32 servers stay below 0.001."""

MAX_ASKED = 8  # differences whose margin is asked for: each costs a request


@dataclass(frozen=True)
class OutputDifference:
    """The first place where two servers' outputs for one prompt differ."""

    prompt: int
    position: int  # characters into the output
    baseline: str  # what follows there
    server: str
    margin: float | None = None  # nats between the baseline's two best tokens there
    remark: str = ""  # why there is no margin

    @property
    def is_rounding(self) -> bool:
        return self.margin is not None and self.margin < ROUNDING_MARGIN


def output_differences(server: Side, baseline: Side) -> tuple[int, list[OutputDifference]]:
    """How many prompts both servers completed, and the first difference of each that came out differently.

    Only a prompt's first run counts: later ones are for the times.
    """
    compared, found = 0, []
    for number, (own, base) in enumerate(zip(server.results, baseline.results, strict=True)):
        if not (isinstance(own[0], Reply) and isinstance(base[0], Reply)):
            continue
        compared += 1
        if own[0].text != base[0].text:
            pairs = enumerate(zip_longest(own[0].text, base[0].text))
            position = next(place for place, (one, other) in pairs if one != other)
            ahead = slice(position, position + 20)
            found.append(OutputDifference(number, position, base[0].text[ahead], own[0].text[ahead]))
    return compared, found


async def with_margins(
    differences: Sequence[OutputDifference], baseline: Side, prompts: Sequence[str], wanted: RequestSettings
) -> list[OutputDifference]:
    """The differences with their margins, as far as the baseline tells them."""
    answered = []
    for place, found in enumerate(differences):
        margin, remark = None, f"only the first {MAX_ASKED} differences are looked into"
        if place < MAX_ASKED:
            margin, remark = await _margin(found, baseline, prompts[found.prompt], wanted)
        answered.append(replace(found, margin=margin, remark=remark))
    return answered


async def _margin(
    found: OutputDifference, baseline: Side, prompt: str, wanted: RequestSettings
) -> tuple[float | None, str]:
    logprobs = {"logprobs": True, "top_logprobs": 2} if wanted.chat else {"logprobs": 2}
    try:
        answer = await baseline.client.complete(wanted.body(prompt, baseline.model, **logprobs), wanted.path)
        places = _places(answer["choices"][0], wanted.chat)
    except Fault as fault:
        return None, f"the baseline gives no log probabilities ({fault})"
    except (KeyError, IndexError, TypeError, AttributeError):
        return None, "the baseline gives no log probabilities"
    expected = next(run.text for run in baseline.results[found.prompt] if isinstance(run, Reply))
    start = 0
    for token, top in places:
        end = start + len(token)
        if end > found.position:
            if len(top) < 2:
                return None, "the baseline names no second-best token"
            best, second = sorted(top, reverse=True)[:2]
            return best - second, ""
        if token != expected[start:end]:
            break
        start = end
    if start == found.position == len(expected):
        return None, "the baseline ends there, and servers give no log probabilities of the end"
    return None, "asked again, the baseline itself gave another output: it is not reproducible"


def _places(choice: dict, chat: bool) -> list[tuple[str, list[float]]]:
    """Each output token's text and the log probabilities of the likeliest tokens at its place."""
    logprobs = choice["logprobs"]
    if chat:
        return [(item["token"], [top["logprob"] for top in item["top_logprobs"]]) for item in logprobs["content"]]
    return [
        (token, list(top.values()))
        for token, top in zip(logprobs["tokens"], logprobs["top_logprobs"], strict=True)
    ]  # fmt: skip
