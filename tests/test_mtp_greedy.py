"""The shipped checkpoint: greedy output is the baseline's on all 200 held-out prompts, and drafts are accepted."""

import pytest
import torch

import mtp.prompts as prompt_files
from mtp import NativeMTP, Sampling, Transformer, decode, encode, load
from mtp.equality import ROUNDING_MARGIN, Difference, differences
from mtp.measure import Route, compare, forward_cost, frequency_p_value, quantile, weight_bytes
from mtp.prompts import KINDS, load_prompts


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return load()


@pytest.fixture(scope="module")
def prompts():
    return [prompt.ids for prompt in load_prompts("code")]


@pytest.fixture(scope="module")
def batched(model, prompts):
    """All 200 prompts, 16 tokens each, without and with drafts, 50 at a time."""

    def run(proposer):
        return [
            tokens
            for i in range(0, len(prompts), 50)
            for tokens in decode(model, prompts[i : i + 50], proposer, max_new_tokens=16).tokens
        ]

    return run(None), run(NativeMTP(model))


def test_greedy_is_identical_on_200_prompts(model, prompts, batched):
    expected, actual = batched
    assert len(prompts) >= 200
    found = differences(model, prompts, expected, actual)
    assert [d for d in found if not d.is_rounding] == []
    assert len(found) <= 2, f"rounding should decide hardly ever: {found}"


def test_single_sequences_agree_with_the_batch(model, prompts, batched):
    some = range(0, 200, 20)
    alone = [decode(model, prompts[i], NativeMTP(model), max_new_tokens=16).tokens[0] for i in some]
    found = differences(model, [prompts[i] for i in some], [batched[0][i] for i in some], alone)
    assert [d for d in found if not d.is_rounding] == []


def test_a_real_difference_is_no_rounding(model, prompts, batched):
    outputs = [list(tokens) for tokens in batched[0][:3]]
    outputs[1][5] = (outputs[1][5] + 1) % 128
    outputs[2] = outputs[2][:-1]
    found = differences(model, prompts[:3], batched[0][:3], outputs)
    assert [(d.prompt, d.position) for d in found] == [(1, 5), (2, 15)]
    assert not all(d.is_rounding for d in found)
    assert Difference(0, 0, ROUNDING_MARGIN / 2).is_rounding


def acceptance(model, prompts, temperature=1.0):
    """Mean acceptance length, bonus included, of K = 3 on some prompts."""
    run = decode(model, prompts[:16], NativeMTP(model), max_new_tokens=48, sampling=Sampling(temperature))
    return run.mean_acceptance_length


def test_drafts_are_accepted_and_a_shuffled_input_is_not(monkeypatch, model, prompts):
    healthy = acceptance(model, prompts)
    assert healthy > 2.8
    original = Transformer.module_forward
    order = torch.randperm(model.config.d_model, generator=torch.Generator().manual_seed(0))

    def shuffled(self, index, ids, hidden, cache):
        return original(self, index, ids, hidden[..., order], cache)

    monkeypatch.setattr(Transformer, "module_forward", shuffled)
    assert acceptance(model, prompts) < 0.75 * healthy


def test_survival_falls_with_position(model, prompts):
    run = decode(model, prompts[:16], NativeMTP(model), max_new_tokens=48, sampling=Sampling(1.0))
    survival = run.survival()
    assert len(survival) == 3
    assert 1 > survival[0] > survival[1] > survival[2] > 0.3


class TestPrompts:
    @pytest.mark.parametrize("kind, least", [("code", 200), ("prose", 60), ("repetitive", 60)])
    def test_kinds(self, model, kind, least):
        prompts = load_prompts(kind)
        assert len(prompts) >= least
        assert len({prompt.text for prompt in prompts}) == len(prompts)
        for prompt in prompts:
            assert prompt.source.startswith("CPython ")
            assert bytes(prompt.ids).decode() == prompt.text
            assert 64 <= len(prompt.ids) <= 192

    def test_code_is_held_out(self):
        from mtp.data import is_held_out

        for prompt in load_prompts("code"):
            assert is_held_out(prompt.source.split(" Lib/")[1].rsplit(":", 1)[0])

    def test_notice_lies_beside(self):
        notice = (prompt_files.FILE.parent / "NOTICE.txt").read_text()
        assert "PYTHON SOFTWARE FOUNDATION LICENSE VERSION 2" in notice

    @pytest.mark.parametrize("arguments", [("verse",), ("code", 0), ("code", 10**4)])
    def test_bad_arguments(self, arguments):
        with pytest.raises(ValueError):
            load_prompts(*arguments)
        assert "code" in KINDS


class TestMeasure:
    def test_compare(self, model, prompts):
        routes = [Route("k=0"), Route("k=3", NativeMTP(model), 3)]
        seen = []
        results = compare(
            model, prompts[:4], routes, max_new_tokens=12, batch=2, repeats=2, on_progress=lambda *c: seen.append(c)
        )
        assert seen[-1] == (8, 8)
        baseline, drafted = results
        assert baseline.speedup == baseline.speedup_cpu == 1.0
        assert baseline.mean_acceptance_length == baseline.tokens_per_round == 1.0
        assert drafted.mean_acceptance_length > 1.5
        assert drafted.differences == [] or all(d.is_rounding for d in drafted.differences)
        assert drafted.p_value is None
        assert min(drafted.draft, drafted.verify, drafted.rollback, drafted.tpot_p50, drafted.tokens_per_second) > 0
        assert drafted.tpot_p50 <= drafted.tpot_p95
        assert drafted.kv_bytes > 0

    def test_compare_sampled(self, model, prompts):
        routes = [Route("k=0"), Route("k=2", NativeMTP(model), 2)]
        results = compare(model, prompts[:4], routes, max_new_tokens=8, sampling=Sampling(1.0))
        assert results[0].p_value is None and results[1].differences is None
        assert 0 < results[1].p_value <= 1

    @pytest.mark.parametrize("options", [{"batch": 0}, {"repeats": 0}])
    def test_bad_arguments(self, model, prompts, options):
        with pytest.raises(ValueError, match="at least 1"):
            compare(model, prompts[:1], [Route("k=0")], **options)
        with pytest.raises(ValueError, match="nothing to compare"):
            compare(model, [], [Route("k=0")])

    def test_frequencies(self):
        generator = torch.Generator().manual_seed(0)
        one, same = (torch.randint(5, (40, 30), generator=generator).tolist() for _ in range(2))
        other = torch.randint(4, (40, 30), generator=generator).tolist()
        assert frequency_p_value(one, same) > 0.05
        assert frequency_p_value(one, other) < 0.01

    def test_costs_and_sizes(self, model):
        costs = forward_cost(model, (1, 4), context=32, repeats=3)
        assert set(costs) == {1, 4} and min(costs.values()) > 0
        sizes = weight_bytes(model)
        assert sum(sizes.values()) == 4 * sum(p.numel() for p in model.parameters())
        assert quantile([1.0, 2.0, 3.0], 0.5) == 2.0


def test_readme_example():
    shipped = load()
    run = decode(shipped, encode("def main("), NativeMTP(shipped), max_new_tokens=16)
    assert len(run.tokens[0]) == 16
