"""DFlash: its block, its cache of target features, its losslessness, its training."""

import pytest
import routes_shipped
import torch
from block_drafters import PROMPTS, SIZES, largest_state_error, output_of, started, tiny_drafter, tiny_target
from mtp_invariants import checked
from mtp_tabular import GRID, Grid, P, expected, joint, table_target

from mtp import Sampling, decode
from mtp.drafter_training import evaluate_drafter, train_drafter
from mtp.drafters.dflash import DFlash, DFlashModel
from mtp.model import TargetOutput
from mtp.routes import load_drafter

ROUNDING = 1e-4  # logits of a few units in fp32, through a handful of layers


def drafter(k=None, kind=DFlash):
    return kind(tiny_target(), tiny_drafter(DFlashModel), k)


# The block --------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_training_and_decoding_compute_the_same_block():
    ids = torch.randint(11, (2, 30), generator=torch.Generator().manual_seed(0))
    anchors = torch.tensor([[3, 25, 9, 3, 1], [14, 2, 20, 7, 11]])  # several blocks at once, in any order
    model = tiny_drafter(DFlashModel)
    features = tiny_target().forward(ids, tiny_target().new_cache(2, 30), feature_layers=model.feature_layers).features
    trained = model.head(model.train_blocks(ids, features, anchors))  # (B, A, K, V)
    for number in range(anchors.shape[1]):
        known = [row[: anchor + 1] for row, anchor in zip(ids.tolist(), anchors[:, number].tolist(), strict=True)]
        proposer, context = started(tiny_target(), drafter(), known)  # ragged: the rows' anchors differ
        torch.testing.assert_close(proposer._block(context, 4)[0], trained[:, number], atol=ROUNDING, rtol=0)


@torch.no_grad()
def test_rows_of_a_block_see_each_other_both_ways():
    first = []
    for rows in (2, 4):
        proposer = DFlash(tiny_target(), tiny_drafter(DFlashModel, block=rows))  # the parameters are the same
        first.append(proposer._block(started(tiny_target(), proposer, [[1, 2, 3]])[1], 1)[0])
    assert (first[0] - first[1]).abs().max() > 100 * ROUNDING  # the first row saw the third and the fourth


@torch.no_grad()
def test_a_short_draft_is_the_beginning_of_a_long_one():
    proposer, context = started(tiny_target(), drafter(), PROMPTS)
    short, long = (proposer.propose(context, k, None).tokens for k in (2, 4))
    assert short.tolist() == long[:, :2].tolist()


@torch.no_grad()
def test_ragged_rows_are_independent_of_their_neighbours():
    together, context = started(tiny_target(), drafter(), PROMPTS)
    block = together._block(context, 4)[0]
    for row, prompt in enumerate(PROMPTS):
        alone, own = started(tiny_target(), drafter(), [prompt])
        torch.testing.assert_close(alone._block(own, 4)[0][0], block[row], atol=ROUNDING, rtol=0)


# The cache --------------------------------------------------------------------------------------------------------


class KeepsDraftedKeys(DFlash):
    """Fault: the block's own keys and values stand in for the accepted tokens' features."""

    def update(self, context, output, starts, kept):
        self.cache.rollback([known - 1 for known in context.known])


class KeepsOneTooMany(DFlash):
    """Fault: the slot after the last accepted token, of a rejected draft, stays visible."""

    def update(self, context, output, starts, kept):
        super().update(context, output, starts, kept)
        self.cache.rollback(context.known)


class OneSlotLate(DFlash):
    """Fault: features go one slot, and so one position, too far."""

    def update(self, context, output, starts, kept):
        super().update(context, output, [start + 1 for start in starts], kept)


class NeighboursFeatures(DFlash):
    """Fault: a row gets the features of the next row of the batch."""

    def update(self, context, output, starts, kept):
        rolled = tuple(feature.roll(1, 0) for feature in output.features)
        super().update(context, TargetOutput(output.hidden, rolled), starts, kept)


def test_cache_after_each_round_is_that_of_a_fresh_start():
    assert largest_state_error(drafter(), drafter()) < ROUNDING


@pytest.mark.parametrize("fault", [KeepsDraftedKeys, KeepsOneTooMany, OneSlotLate, NeighboursFeatures])
def test_faults_of_the_cache_are_seen(fault):
    assert largest_state_error(drafter(kind=fault), drafter()) > 10 * ROUNDING


# Losslessness -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2, 4])
def test_greedy_output_is_the_baselines(k):
    baseline = decode(tiny_target(), PROMPTS, max_new_tokens=20)
    assert checked(tiny_target(), PROMPTS, drafter(k), new=20).tokens == baseline.tokens
    eos = baseline.tokens[0][4]
    shortened = decode(tiny_target(), PROMPTS, max_new_tokens=20, eos=eos).tokens
    assert shortened != baseline.tokens
    assert checked(tiny_target(), PROMPTS, drafter(k), new=20, eos=eos).tokens == shortened


class TableDFlash(DFlash):
    """DFlash over tables: row i of the block after token t has q = (1/2, 1/2, 0), (1/2, 0, 1/2), … by i and t."""

    PAIRS = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])
    k, name, feature_layers = 2, "table", ()

    def __init__(self, scale=1.0):
        self.scale = scale

    def start(self, context, output):
        pass

    def update(self, context, output, starts, kept):
        pass

    def _block(self, context, k):
        anchors = context.tokens.gather(1, torch.tensor(context.known)[:, None] - 1)  # (B, 1)
        return self.scale * self.PAIRS[(anchors + torch.arange(k)) % 3].log().clamp(min=-80), None


class ReportsAnotherQ(TableDFlash):
    """Fault: a draft is verified with a distribution it was not drawn from."""

    def propose(self, context, k, uniforms):
        proposal = super().propose(context, k, uniforms)
        proposal.q = torch.full_like(proposal.q, 1 / 3)
        return proposal


def joint_error(proposer, p, temperature=1.0):
    """Total variation distance between the loop's joint distribution of four tokens and the target's own."""
    outcomes = Grid(GRID)
    result = decode(
        table_target(temperature * p.log()), [[0]] * len(outcomes), proposer, max_new_tokens=4,
        sampling=Sampling(temperature), generator=outcomes,
    )  # fmt: skip
    return float((joint(result.tokens, 4) - expected(p, 4)).abs().sum() / 2)


# All of the target's distributions are halves too, so that every residual is one token or two equal ones.
HALVES = torch.cat([torch.tensor([[[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.5, 0.0, 0.5]]] * 2).double(), P[2:]])


def test_joint_distribution_is_exact():
    assert joint_error(TableDFlash(2.0), HALVES, temperature=2.0) < 1e-6


def test_a_q_that_was_not_drawn_from_is_seen():
    assert joint_error(ReportsAnotherQ(), HALVES) > 0.01


# Training ---------------------------------------------------------------------------------------------------------


TEXT = torch.arange(4000).remainder(7).mul(3).remainder(11).to(torch.uint8)


def test_training_lowers_the_loss():
    torch.manual_seed(2)
    model = DFlashModel(tiny_target(), **SIZES)
    before = evaluate_drafter(model, tiny_target(), TEXT, batches=2, length=24)
    train_drafter(model, tiny_target(), TEXT, steps=30, batch=4, length=24)
    after = evaluate_drafter(model, tiny_target(), TEXT, batches=2, length=24)
    assert after < before - 0.3  # nats


def test_anchors_and_targets_are_aligned():
    model = tiny_drafter(DFlashModel)
    ids = torch.randint(11, (3, 12), generator=torch.Generator().manual_seed(0))
    logits = torch.nn.functional.one_hot(ids.roll(-1, 1), 11) * 50.0  # certain of the next token
    anchors = model.sample_anchors(ids, torch.Generator().manual_seed(0))
    assert anchors.min() >= 1 and anchors.max() <= 12 - 1 - 4
    p, before = model.aligned(ids, logits, anchors)
    for row, number in torch.cartesian_prod(torch.arange(3), torch.arange(5)).tolist():
        anchor = int(anchors[row, number])
        assert before[row, number].tolist() == ids[row, anchor : anchor + 4].tolist()
        assert p[row, number].argmax(-1).tolist() == ids[row, anchor + 1 : anchor + 5].tolist()
    draws = [model.sample_anchors(ids, torch.Generator().manual_seed(seed)) for seed in range(20)]
    assert set(torch.stack(draws).flatten().tolist()) == set(range(1, 8))


def test_loss_weighs_the_front_of_the_block_more():
    model = tiny_drafter(DFlashModel)
    by_position = [float(model.decayed(torch.eye(4)[i].expand(2, 3, 4))) for i in range(4)]
    ratios = [later / earlier for earlier, later in zip(by_position, by_position[1:], strict=False)]
    torch.testing.assert_close(torch.tensor(ratios), torch.full((3,), -1 / 4).exp())
    assert sum(by_position) == pytest.approx(1.0)


def test_the_targets_parameters_are_neither_trained_nor_saved():
    model = tiny_drafter(DFlashModel)
    assert not {"embedding", "rope"} & set(model.state_dict())
    assert model.embedding.data_ptr() == tiny_target().embedding.data_ptr()


# Errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature_layers": (1, 5)}, "depths 0 to 4, got 5"),
        ({"block": 0}, "block must be a positive integer, got 0"),
        ({"n_layers": 1.5}, "n_layers"),
        ({"loss_decay": 0.0}, "loss_decay"),
    ],
)
def test_bad_sizes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        DFlashModel(tiny_target(), **{**SIZES, **changes})


def test_default_feature_layers_are_spread_over_the_target():
    assert DFlashModel(tiny_target()).feature_layers == (1, 2, 3, 4)


def test_more_drafts_than_the_block_are_refused():
    with pytest.raises(ValueError, match="from 1 to 4 .*got 5"):
        drafter(5)


def test_a_window_too_short_for_a_block_is_refused():
    model = tiny_drafter(DFlashModel)
    ids = torch.zeros(1, 5, dtype=torch.long)
    output = output_of(tiny_target(), started(tiny_target(), drafter(), [[0] * 6])[1], model.feature_layers)
    with pytest.raises(ValueError, match="5 tokens have no room"):
        model.loss(ids, output, torch.zeros(1, 5, 11), torch.Generator())


# The shipped drafter ----------------------------------------------------------------------------------------------


def test_greedy_is_the_baseline_on_held_out_prompts():
    outputs, length = routes_shipped.greedy(load_drafter("dflash", routes_shipped.target()))
    assert routes_shipped.defects(outputs) == []
    assert length > 1.5


class ShuffledFeatures(DFlash):
    """Control: the target's features in another order of channels, so that they mean nothing."""

    def _append(self, features, starts):
        super()._append([feature.flip(-1) for feature in features], starts)


def sampled_acceptance(kind):
    """Accepted drafts a round at T = 1."""
    target = routes_shipped.target()
    proposer = kind(target, load_drafter("dflash", target).model, 4)
    generator = torch.Generator().manual_seed(0)
    run = decode(
        target, routes_shipped.prompts()[:16], proposer, max_new_tokens=40, sampling=Sampling(1.0), generator=generator
    )
    return run.mean_acceptance_length - 1


def test_acceptance_needs_the_targets_features_and_fresh_ones():
    right = sampled_acceptance(DFlash)
    assert sampled_acceptance(ShuffledFeatures) < 0.5 * right
    assert sampled_acceptance(KeepsDraftedKeys) < 0.8 * right  # the output is right all the same: acceptance tells
