"""The decoding loop: its invariants each round, and what it must do at EOS, at the length limit and in a batch."""

import pytest
import torch
from mtp_invariants import checked
from mtp_reference import greedy, prompts_for, small_model, trained_model

import mtp.decoding as decoding
from mtp import NativeMTP, Proposal, Sampling, Uniforms, decode, encode
from mtp.cache import KVCache


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", [0, 1, 3, 6])
@pytest.mark.parametrize("batch", [1, 4])
def test_invariants(batch, k, temperature):
    model = trained_model()
    proposer = NativeMTP(model, k, recycle=True) if k else None
    for number in range(0, 4, batch):
        prompts = prompts_for(model, 4, seed=7)[number : number + batch]
        for eos in (None, ord(" "), ord("e")):
            checked(model, prompts, proposer, eos=eos, sampling=Sampling(temperature))


@pytest.mark.parametrize("k", [0, 2, 3, 5])
def test_greedy_batch_equals_each_sequence_alone(k):
    model = trained_model()
    prompts = prompts_for(model, 5, seed=8, shortest=1)
    expected = [greedy(model, prompt, 20) for prompt in prompts]
    proposer = NativeMTP(model, k, recycle=True) if k else None
    assert decode(model, prompts, proposer, max_new_tokens=20).tokens == expected


@pytest.mark.parametrize("limit", range(1, 9))
def test_any_number_of_tokens(limit):
    model = trained_model()
    prompt = prompts_for(model, 1, seed=9)[0]
    assert decode(model, prompt, NativeMTP(model), max_new_tokens=limit).tokens == [greedy(model, prompt, limit)]


class Oracle:
    """A drafter that is always right: it drafts the target's own tokens, also beyond the limit."""

    name, k, feature_layers = "oracle", 3, ()

    def __init__(self, prompt, continuation):
        self.tokens = prompt + continuation

    def start(self, context, output):
        pass

    def propose(self, context, k, uniforms):
        known = context.known[0]
        return Proposal(torch.tensor([self.tokens[known : known + k]]))

    def update(self, context, output, starts, kept):
        pass


PROMPT = encode("    def add_argument(self, ")


def test_eos_inside_the_accepted_prefix():
    """For every token of an output as EOS, the output ends at its first occurrence, wherever it lies in a round."""
    model = trained_model()
    whole = greedy(model, PROMPT, 40)
    inside = 0
    for eos in set(whole[:24]):
        for proposer in (NativeMTP(model), Oracle(PROMPT, whole)):
            run = checked(model, [PROMPT], proposer, eos=eos)
            assert run.tokens == [whole[: whole.index(eos) + 1]]
            inside += any(row.emitted < row.accepted + 1 for r in run.rounds for row in r.rows)
    assert inside > 0, "the test wants an EOS among accepted drafts"


def eos_only_looked_for_at_the_end(self, rows):
    original = self.eos
    self.eos = None
    emitted = emit(self, rows)
    self.eos = original
    self.context.active = [row for row in self.context.active if self.outputs[row][-1] != original]
    return emitted


def limit_overrun(self, rows):
    limit, self.max_new_tokens = self.max_new_tokens, 10**6
    emitted = emit(self, rows)
    self.max_new_tokens = limit
    self.context.active = [row for row in self.context.active if len(self.outputs[row]) < limit]
    return emitted


emit = decoding._Run._emit


@pytest.mark.parametrize("fault, message", [(eos_only_looked_for_at_the_end, "EOS"), (limit_overrun, "max_new")])
def test_the_checker_sees_emission_faults(monkeypatch, fault, message):
    model = trained_model()
    whole = greedy(model, PROMPT, 40)
    # A token that first occurs after the prefill's, and not at the end of a round of four.
    eos = next(token for i, token in enumerate(whole) if i % 4 in (1, 2, 3) and whole.index(token) == i)
    eos = eos if fault is eos_only_looked_for_at_the_end else None
    checked(model, [PROMPT], Oracle(PROMPT, whole), new=10, eos=eos)
    monkeypatch.setattr(decoding._Run, "_emit", fault)
    if fault is limit_overrun:  # a loop that does not spare the last drafts either
        monkeypatch.setattr(decoding, "min", lambda *values: values[0], raising=False)
    with pytest.raises(AssertionError, match=message):
        checked(model, [PROMPT], Oracle(PROMPT, whole), new=10, eos=eos)


def test_the_checker_sees_a_cache_that_is_not_rolled_back(monkeypatch):
    model = trained_model()
    wrong = Oracle(PROMPT, [0] * 40)
    checked(model, [PROMPT], wrong)
    monkeypatch.setattr(KVCache, "rollback", lambda self, lengths: None)
    with pytest.raises(AssertionError, match="KV length"):
        checked(model, [PROMPT], wrong)


def test_the_loop_sees_a_neighbours_row(monkeypatch):
    model = trained_model()
    prompts = prompts_for(model, 4, seed=12)
    expected = decode(model, prompts, NativeMTP(model), max_new_tokens=16).tokens
    original = decoding.window

    def first_row_for_all(values, starts, width):
        return original(values, [starts[0]] * len(starts), width)

    monkeypatch.setattr(decoding, "window", first_row_for_all)
    assert decode(model, prompts, NativeMTP(model), max_new_tokens=16).tokens != expected


class TestProposals:
    """Drafters of other kinds: without q, with ragged counts, with none at all, with features, with trees."""

    class Scripted:
        name, k, nodes, feature_layers = "scripted", 4, 6, ()

        def __init__(self, make):
            self.make, self.updates = make, []

        def start(self, context, output):
            self.first = output

        def propose(self, context, k, uniforms):
            return self.make(context, k)

        def update(self, context, output, starts, kept):
            self.updates.append((output, list(starts), list(kept)))

    def test_no_drafts_is_autoregression(self):
        model = trained_model()
        prompts = prompts_for(model, 2, seed=13)
        nothing = self.Scripted(lambda context, k: Proposal(torch.zeros(2, 0, dtype=torch.long)))
        run = checked(model, prompts, nothing, new=8)
        assert run.tokens == [greedy(model, prompt, 8) for prompt in prompts]
        assert run.mean_acceptance_length == 1.0
        assert len(run.rounds) == 7

    def test_ragged_counts_without_q(self):
        model = trained_model()
        prompts = prompts_for(model, 3, seed=14)
        answers = [prompt + greedy(model, prompt, 20) for prompt in prompts]

        def make(context, k):  # row b drafts b right tokens; the padding would be right as well
            rows = [answers[b][n : n + k] + [0] * k for b, n in enumerate(context.known)]
            return Proposal(torch.tensor([row[:k] for row in rows]), counts=[min(b, k) for b in range(3)])

        run = checked(model, prompts, self.Scripted(make), new=12)
        assert run.tokens == [answer[len(prompt) :][:12] for answer, prompt in zip(answers, prompts, strict=True)]
        first = run.rounds[0].rows
        assert [(row.proposed, row.accepted, row.emitted) for row in first] == [(0, 0, 1), (1, 1, 2), (2, 2, 3)]

    def test_sampling_with_deterministic_drafts(self):
        model = trained_model()
        prompts = prompts_for(model, 2, seed=15)
        fixed = self.Scripted(lambda context, k: Proposal(torch.full((2, k), 32)))
        checked(model, prompts, fixed, sampling=Sampling(1.0))

    @pytest.mark.parametrize("batch", [1, 2])
    def test_features_of_chosen_layers(self, batch):
        model = trained_model()
        prompts = [prompt[:5] + [1] * 5 for prompt in prompts_for(model, batch, seed=16, shortest=5)]
        proposer = self.Scripted(lambda context, k: Proposal(torch.full((batch, k), 32)))
        proposer.feature_layers = (0, 2)
        run = decode(model, prompts, proposer, max_new_tokens=6)
        tokens = torch.tensor([p + t for p, t in zip(prompts, run.tokens, strict=True)])
        full = model.forward(tokens, model.new_cache(batch, tokens.shape[1]), feature_layers=(0, 2))
        torch.testing.assert_close(proposer.first.hidden, full.hidden[:, :10], atol=1e-4, rtol=1e-4)
        for output, starts, kept in proposer.updates:
            for b in range(batch):
                span = slice(starts[b], starts[b] + kept[b])
                for mine, theirs in zip((output.hidden, *output.features), (full.hidden, *full.features), strict=True):
                    torch.testing.assert_close(mine[b, : kept[b]], theirs[b, span], atol=1e-4, rtol=1e-4)
        assert len(proposer.updates) >= 1

    def test_a_tree_finds_the_right_branch(self):
        model = trained_model()
        prompts = prompts_for(model, 2, seed=17)
        answers = [prompt + greedy(model, prompt, 30) for prompt in prompts]

        def make(context, k):
            # Two wrong nodes first, then the right chain of three, its second node after a wrong sibling.
            right = [answers[b][n : n + 3] for b, n in enumerate(context.known)]
            right = [r + [0] * (3 - len(r)) for r in right]
            wrong = [[(t + 1) % 128 for t in r] for r in right]
            tokens = [[w[0], w[1], r[0], w[1], r[1], r[2]] for r, w in zip(right, wrong, strict=True)]
            return Proposal(torch.tensor(tokens), parents=[[-1, 0, -1, 2, 2, 4]] * 2)

        proposer = self.Scripted(make)
        run = checked(model, prompts, proposer, new=13)
        assert run.tokens == [answer[len(prompt) :][:13] for answer, prompt in zip(answers, prompts, strict=True)]
        assert [(row.proposed, row.levels, row.accepted) for row in run.rounds[0].rows] == [(6, 3, 3)] * 2
        assert run.survival() == [1.0, 1.0, 1.0]
        assert len(run.rounds) == 3
        tokens = torch.tensor(answers[0][: len(prompts[0]) + 12])[None]
        full = model.forward(tokens, model.new_cache(1, tokens.shape[1])).hidden
        output, starts, kept = proposer.updates[0]
        torch.testing.assert_close(
            output.hidden[0, : kept[0]], full[0, starts[0] : starts[0] + kept[0]], atol=1e-4, rtol=1e-4
        )

    @pytest.mark.parametrize(
        "arguments, message",
        [
            ({"q": torch.zeros(1, 3, 5)}, "q has shape"),
            ({"counts": [4]}, "counts"),
            ({"parents": [[0, 0]]}, "parents"),
            ({"parents": [[-1, 0]], "q": torch.zeros(1, 2, 5)}, "deterministic"),
        ],
    )
    def test_malformed_proposals(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            Proposal(torch.zeros(1, 2, dtype=torch.long), **arguments)

    def test_too_many_drafts(self):
        model = small_model()
        greedy_one = self.Scripted(lambda context, k: Proposal(torch.zeros(1, k + 1, dtype=torch.long)))
        with pytest.raises(ValueError, match="at most 4"):
            decode(model, [1, 2], greedy_one, max_new_tokens=9)


class TestWrongUse:
    @pytest.mark.parametrize(
        "prompts, options, message",
        [
            ([], {}, "prompt 0 is empty"),
            ([[1], []], {}, "prompt 1 is empty"),
            ([1, 16], {}, "id 16"),
            ("text", {}, "encode"),
            ([1] * 90, {"max_new_tokens": 7}, "max_length=96"),
            ([1], {"max_new_tokens": 0}, "max_new_tokens"),
            ([1], {"eos": 16}, "eos"),
        ],
    )
    def test_bad_arguments(self, prompts, options, message):
        with pytest.raises(ValueError, match=message):
            decode(small_model(), prompts, **{"max_new_tokens": 4, **options})

    def test_longest_allowed(self):
        model = small_model()
        assert len(decode(model, [1] * 90, NativeMTP(model, 6, recycle=True), max_new_tokens=6).tokens[0]) == 6

    def test_nan_weights(self):
        model = small_model()
        model.embedding[3] = float("nan")
        with pytest.raises(FloatingPointError, match="not finite"):
            decode(model.fold(), [1, 2, 3], max_new_tokens=2)

    def test_cache_too_short(self):
        cache = small_model().new_cache(1, 4)
        with pytest.raises(IndexError, match="holds 4 tokens"):
            cache.reserve(5)


def test_uniforms_are_fresh_every_round():
    """Every random number is drawn once and used for one decision: 1 for the prefill, 2k + 1 a round."""

    class Counting(Uniforms):
        drawn = []

        def draw(self, batch, count):
            self.drawn.append((batch, count))
            return super().draw(batch, count)

    model = trained_model()
    source = Counting(torch.Generator().manual_seed(0))
    run = decode(model, [65, 66], NativeMTP(model), max_new_tokens=12, sampling=Sampling(1.0), generator=source)
    assert source.drawn[0] == (1, 1)
    assert [count for _, count in source.drawn[1:]] == [2 * r.rows[0].proposed + 1 for r in run.rounds]
