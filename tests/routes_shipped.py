"""The shipped target, its held-out prompts and its own greedy continuations, computed once for all route tests."""

import functools

from mtp_invariants import checked

from mtp import load
from mtp.equality import differences
from mtp.prompts import load_prompts

PROMPTS = 52
NEW_TOKENS = 24
BATCH = 26  # ragged in prompt length and in acceptance


@functools.cache
def target():
    return load()


@functools.cache
def prompts():
    return [prompt.ids for prompt in load_prompts("code", PROMPTS)]


def greedy(proposer):
    """New tokens of every prompt, and the mean acceptance length; every round's invariants are checked."""
    found, lengths = [], []
    for first in range(0, PROMPTS, BATCH):
        run = checked(target(), prompts()[first : first + BATCH], proposer, new=NEW_TOKENS)
        found += run.tokens
        lengths.append(run.mean_acceptance_length)
    return found, sum(lengths) / len(lengths)


@functools.cache
def baseline():
    return greedy(None)[0]


def defects(outputs):
    """Differences from the baseline that rounding does not explain."""
    return [d for d in differences(target(), prompts(), baseline(), outputs) if not d.is_rounding]
