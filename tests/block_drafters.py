"""What the tests of DFlash and DSpark share: a tiny target with random weights, and a drafter's state from scratch."""

from functools import cache

import torch

from mtp import GREEDY, Context, ModelConfig, Sampling, Transformer, decode

SIZES = dict(block=4, n_layers=2, d_ff=24, feature_layers=(1, 3, 4), anchors=5, loss_decay=4.0)
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [8, 9], [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [10, 0, 2]]


@cache
def tiny_target():
    torch.manual_seed(0)
    config = ModelConfig(vocab_size=11, d_model=16, n_layers=4, n_heads=2, d_ff=24, n_mtp=0, max_length=64)
    model = Transformer(config)
    with torch.no_grad():  # without this the input shines through, and every output repeats one token
        for block in model.blocks:
            block.out.mul_(4)
            block.down.mul_(4)
    return model.eval().fold()


def tiny_drafter(kind, **changes):
    """An untrained drafter whose parameters are all random, so that none is without effect."""
    target = tiny_target()  # before the seed: it has one of its own
    torch.manual_seed(1)
    model = kind(target, **{**SIZES, **changes})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def context_of(sequences, sampling=GREEDY, room=8):
    capacity = max(map(len, sequences)) + room
    tokens = torch.zeros(len(sequences), capacity, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = torch.tensor(sequence)
    known = [len(sequence) for sequence in sequences]
    return Context(tokens, known, sampling, capacity, active=list(range(len(sequences))))


def output_of(target, context, feature_layers):
    """The target's output over all known tokens but the last, right-padded."""
    ids = context.tokens[:, : max(context.known) - 1]
    return target.forward(ids, target.new_cache(len(ids), ids.shape[1]), feature_layers=feature_layers)


@torch.no_grad()
def started(target, proposer, sequences, sampling=GREEDY):
    """The proposer as it is after a prefill of `sequences` but their last tokens, and the context."""
    context = context_of(sequences, sampling)
    proposer.start(context, output_of(target, context, proposer.feature_layers))
    return proposer, context


def largest_state_error(proposer, fresh, max_new_tokens=12):
    """Largest difference, after any round of a ragged run, between the logits of the running drafter's next block and
    those of a `fresh` one started on the same tokens: 0 but for rounding if its cache is what it should be.
    """
    target = tiny_target()
    worst = 0.0

    def check(record, context, cache):
        nonlocal worst
        known = [row[:length] for row, length in zip(context.tokens.tolist(), context.known, strict=True)]
        again, same = started(target, fresh, known)
        rows = context.active
        if not rows:  # nothing is drafted any more
            return
        difference = proposer._block(context, 3)[0][rows] - again._block(same, 3)[0][rows]
        worst = max(worst, difference.abs().max().item())

    decode(
        target, PROMPTS, proposer, max_new_tokens=max_new_tokens, sampling=Sampling(1.0), on_round=check,
        generator=torch.Generator().manual_seed(3),
    )  # fmt: skip
    return worst


class Recorder:
    """Notes what a scheduler was told and what it answered."""

    def __init__(self, scheduler):
        self.scheduler, self.seen, self.given = scheduler, [], []

    def lengths(self, survival):
        self.seen.append([list(row) for row in survival])
        self.given.append(self.scheduler.lengths(survival))
        return self.given[-1]
