"""DSpark: the Markov head, the confidence head, batches under a budget. The scheduler: test_routes_scheduler.py."""

import itertools

import pytest
import routes_shipped
import torch
from block_drafters import PROMPTS, SIZES, Recorder, largest_state_error, started, tiny_drafter, tiny_target
from mtp_invariants import checked

from mtp import GREEDY, Sampling, decode
from mtp.drafter_training import train_drafter
from mtp.drafters.dflash import DFlash, DFlashModel
from mtp.drafters.dspark import DSpark, DSparkModel
from mtp.drafters.scheduler import Scheduler
from mtp.routes import load_drafter
from mtp.sampling import pick


def drafter(k=None, scheduler=None):
    return DSpark(tiny_target(), tiny_drafter(DSparkModel, markov_rank=5), k, scheduler=scheduler)


# The Markov head --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.7, top_k=5), Sampling(1.3, top_p=0.8)])
def test_drafts_come_from_q_given_the_draft_before(sampling):
    proposer, context = started(tiny_target(), drafter(), PROMPTS, sampling)
    uniforms = torch.rand(len(PROMPTS), 4, generator=torch.Generator().manual_seed(0))
    proposal = proposer.propose(context, 4, uniforms)
    logits, _ = proposer._block(context, 4)
    before = torch.tensor([prompt[-1] for prompt in PROMPTS])
    model = proposer.model
    for i in range(4):
        bias = model.markov_embedding[before] @ model.markov_out.T  # (B, V)
        q = sampling.probabilities(logits[:, i] + bias)
        torch.testing.assert_close(proposal.q[:, i], q)
        before = pick(q, uniforms[:, i])
        assert proposal.tokens[:, i].tolist() == before.tolist()
    greedy = proposer.propose(context, 4, None)
    assert greedy.q is None
    first = logits[:, 0] + model.tables().bias[torch.tensor([prompt[-1] for prompt in PROMPTS])]
    assert greedy.tokens[:, 0].tolist() == first.argmax(-1).tolist()


def test_without_its_table_it_is_dflash():
    torch.manual_seed(4)
    model = DSparkModel(tiny_target(), **SIZES)  # a fresh table is zero
    shared = DFlashModel(tiny_target(), **SIZES)
    shared.load_state_dict({name: value for name, value in model.state_dict().items() if name in shared.state_dict()})
    uniforms = torch.rand(len(PROMPTS), 4, generator=torch.Generator().manual_seed(0))
    ours = [proposer.propose(context, 4, uniforms) for proposer, context in (
        started(tiny_target(), DSpark(tiny_target(), model), PROMPTS, Sampling(1.0)),
        started(tiny_target(), DFlash(tiny_target(), shared), PROMPTS, Sampling(1.0)),
    )]  # fmt: skip
    assert ours[0].tokens.tolist() == ours[1].tokens.tolist()
    torch.testing.assert_close(ours[0].q, ours[1].q)


def test_cache_after_each_round_is_that_of_a_fresh_start():
    scheduler = Scheduler(budget=9)  # drafts that were not verified must leave nothing behind either
    assert largest_state_error(drafter(scheduler=scheduler), drafter()) < 1e-4


# The confidence head ----------------------------------------------------------------------------------------------


def test_confidence_of_a_draft_does_not_depend_on_it():
    recorder = Recorder(Scheduler())
    proposer, context = started(tiny_target(), drafter(scheduler=recorder), [PROMPTS[0]], Sampling(1.0))
    grid = torch.tensor([0.05, 0.35, 0.65, 0.95])
    by_prefix, later = {}, {}
    for uniforms in itertools.product(grid.tolist(), repeat=3):
        tokens = proposer.propose(context, 3, torch.tensor([uniforms])).tokens[0].tolist()
        survival = recorder.seen[-1][0]
        assert all(1 > a > b > 0 for a, b in zip(survival, survival[1:], strict=False))
        for i in range(3):
            by_prefix.setdefault((i, *tokens[:i]), set()).add(round(survival[i], 6))
            later.setdefault(i, set()).add(round(survival[i], 6))
    assert all(len(values) == 1 for values in by_prefix.values())
    assert len(later[1]) > 1 and len(later[2]) > 1  # but it does depend on the drafts before


def test_confidence_is_told_apart_by_sampling():
    recorder = Recorder(Scheduler())
    for sampling, uniforms in ((GREEDY, None), (Sampling(1.0), torch.full((1, 1), 0.5))):
        proposer, context = started(tiny_target(), drafter(scheduler=recorder), [PROMPTS[0]], sampling)
        proposer.propose(context, 1, uniforms)
    assert recorder.seen[0] != recorder.seen[1]


def test_training_moves_both_heads():
    torch.manual_seed(2)
    model = DSparkModel(tiny_target(), markov_rank=5, **SIZES)
    text = torch.randint(11, (4000,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    losses = []
    train_drafter(model, tiny_target(), text, steps=25, batch=4, length=24, on_step=lambda r: losses.append(r.loss))
    assert sum(losses[-5:]) < sum(losses[:5]) - 0.5
    assert model.markov_out.abs().max() > 0.01
    assert model.confidence_sampled.abs().max() > 0.01 and model.confidence_greedy.abs().max() > 0.01


# A batch ----------------------------------------------------------------------------------------------------------


EOS = 4  # ends two of the four greedy outputs half-way


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0)])
@pytest.mark.parametrize("scheduler", [Scheduler(budget=8), Scheduler(budget=8, padded=True), Scheduler(budget=4)])
def test_a_ragged_batch_keeps_to_the_budget(sampling, scheduler):
    eos = EOS if sampling.greedy else None
    run = checked(tiny_target(), PROMPTS, drafter(scheduler=scheduler), new=14, eos=eos, sampling=sampling)
    drafted = 0
    for record in run.rounds:
        assert sum(1 + row.proposed for row in record.rows) <= scheduler.budget
        if len(record.rows) == 4:
            drafted += sum(row.proposed for row in record.rows)
    assert (drafted > 0) == (scheduler.budget > 4)  # one token a row is plain decoding
    if sampling.greedy:
        assert run.tokens == decode(tiny_target(), PROMPTS, max_new_tokens=14, eos=eos).tokens


# The shipped drafter ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scheduler", [None, Scheduler(budget=3 * routes_shipped.BATCH)])
def test_greedy_is_the_baseline_on_held_out_prompts(scheduler):
    proposer = load_drafter("dspark", routes_shipped.target(), scheduler=scheduler)
    outputs, length = routes_shipped.greedy(proposer)
    assert routes_shipped.defects(outputs) == []
    assert length > 1.5


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0)])
def test_confidence_is_calibrated(sampling):
    """What the heads promise for a position, and what is accepted there, on held-out prompts."""
    recorder = Recorder(Scheduler())
    proposer = load_drafter("dspark", routes_shipped.target(), scheduler=recorder)
    run = decode(
        routes_shipped.target(), routes_shipped.prompts(), proposer, max_new_tokens=20, sampling=sampling,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    promised, kept = [], []
    rounds = [record for record in run.rounds if record.rows[0].proposed]  # the last ones draft nothing
    for survival, record in zip(recorder.seen, rounds, strict=True):
        for chances, row in zip(survival, record.rows, strict=True):
            promised += chances[:1]
            kept.append(row.accepted > 0)
    promised, kept = torch.tensor(promised), torch.tensor(kept).double()
    assert float(promised.mean()) == pytest.approx(float(kept.mean()), abs=0.08)
    sure = promised > promised.median()
    assert kept[sure].mean() > kept[~sure].mean() + 0.15
