"""Prompt look-up: finds what a naive search finds, drafts ragged counts, keeps the distribution."""

import random

import pytest
import torch
from routes_enumeration import distance, expected_joint, joint, tiny_target
from routes_shipped import defects, greedy

from mtp import GREEDY, Sampling, decode
from mtp.drafters.lookup import PromptLookup
from mtp.proposer import Context, Proposal


def context_of(*texts):
    width = max(map(len, texts))
    tokens = torch.tensor([[*text, *[0] * (width - len(text))] for text in texts])
    return Context(tokens, [len(text) for text in texts], GREEDY, width, list(range(len(texts))))


def drafted(text, k, **sizes):
    lookup = PromptLookup(k=k, **sizes)
    context = context_of(text)
    lookup.start(context, None)
    return lookup.propose(context, k, None).tokens[0].tolist()


def naive(text, k, n_max, n_min):
    """The latest earlier occurrence of the longest suffix, by trying all of them."""
    for n in range(min(n_max, len(text)), n_min - 1, -1):
        for end in range(len(text) - 1, n - 1, -1):
            if text[end - n : end] == text[-n:]:
                longer = list(text)
                while len(longer) < len(text) + k:
                    longer.append(longer[end + len(longer) - len(text)])
                return longer[len(text) :]
    return []


def test_the_longest_suffix_wins_over_a_later_shorter_one():
    #            1 2 3 → 4          2 3 → 5
    text = [1, 2, 3, 4, 9, 7, 2, 3, 5, 8, 1, 2, 3]
    assert drafted(text, 2, n_max=3, n_min=1) == [4, 9]
    assert drafted(text, 2, n_max=2, n_min=1) == [5, 8]


def test_the_latest_of_equal_matches_wins():
    assert drafted([1, 2, 7, 1, 2, 8, 1, 2], 1, n_max=2, n_min=2) == [8]


def test_a_match_that_runs_into_the_end_repeats_its_period():
    assert drafted([5, 1, 2, 1, 2], 5, n_max=2, n_min=2) == [1, 2, 1, 2, 1]


def test_shorter_matches_than_n_min_do_not_count():
    text = [1, 2, 3, 9, 9, 4, 2, 3]
    assert drafted(text, 1, n_max=8, n_min=2) == [9]
    assert drafted(text, 1, n_max=8, n_min=3) == []


def test_every_round_finds_what_a_naive_search_finds():
    generator = random.Random(0)
    texts = [[generator.randrange(3) for _ in range(generator.randrange(1, 12))] for _ in range(8)]
    lookup = PromptLookup(k=4, n_max=4, n_min=2)
    texts = [list(text) for text in texts]
    lookup.start(context_of(*texts), None)
    for _ in range(15):
        proposal = lookup.propose(context_of(*texts), 4, None)
        for row, text in enumerate(texts):
            assert proposal.tokens[row, : proposal.counts[row]].tolist() == naive(text, 4, 4, 2)
            text += [generator.randrange(3) for _ in range(generator.randrange(0, 4))]
        lookup.update(context_of(*texts), None, [], [])


def test_counts_are_ragged_and_nothing_found_is_plain_decoding():
    target = tiny_target(vocab=8)
    repeating, plain = [1, 2, 3, 4] * 3, [7, 0, 6]
    rounds = []
    both = decode(
        target, [repeating, plain], PromptLookup(k=4, n_min=3), max_new_tokens=12,
        on_round=lambda record, context, cache: rounds.append(record),
    )  # fmt: skip
    alone = [decode(target, [prompt], max_new_tokens=12).tokens[0] for prompt in (repeating, plain)]
    assert both.tokens == alone
    assert any(len({row.proposed for row in record.rows}) > 1 for record in rounds)
    nothing = decode(target, plain, PromptLookup(k=4, n_max=30, n_min=30), max_new_tokens=6)
    assert all(row.proposed == 0 and row.emitted == 1 for record in nothing.rounds for row in record.rows)


@pytest.mark.parametrize(
    "sampling", [Sampling(1.0), Sampling(0.6), Sampling(1.5, top_k=2)], ids=["T=1", "T=0.6", "T=1.5 top-k 2"]
)
def test_keeps_the_joint_distribution(monkeypatch, sampling):
    target, prompt = tiny_target(), [0, 1, 2, 0, 1]
    lookup = PromptLookup(k=2, n_max=2, n_min=1)
    table = joint(monkeypatch, target, lookup, prompt, 3, sampling)
    assert distance(table, expected_joint(target, prompt, 3, sampling)) < 1e-5


def test_a_soft_q_for_looked_up_tokens_is_seen(monkeypatch):
    class Soft(PromptLookup):
        def propose(self, context, k, uniforms):
            proposal = super().propose(context, k, uniforms)
            q = 0.4 * torch.nn.functional.one_hot(proposal.tokens, 3) + 0.2
            return Proposal(proposal.tokens, q, proposal.counts)

    target, prompt = tiny_target(), [0, 1, 2, 0, 1]
    table = joint(monkeypatch, target, Soft(k=2, n_max=2, n_min=1), prompt, 3, Sampling(1.0))
    assert distance(table, expected_joint(target, prompt, 3, Sampling(1.0))) > 0.01


def test_greedy_is_the_baseline_on_held_out_prompts():
    outputs, length = greedy(PromptLookup())
    assert defects(outputs) == []
    assert length > 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"k": 0}, "k must be"), ({"n_min": 0}, "n-gram lengths"), ({"n_min": 5, "n_max": 4}, "n-gram lengths")],
)
def test_wrong_sizes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        PromptLookup(**arguments)
