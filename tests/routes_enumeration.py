"""Exact enumeration of the real decoding loop for any target and drafter, one sequence at a time.

Every random decision of the loop asks the tape: which token `pick` takes, whether the rule accepts a draft, whether a
tree's node is accepted. The tape goes through all answers depth first and multiplies their probabilities, so a run of
the loop is one leaf, and all leaves together are the output's exact distribution. Nothing is replaced: a decision's
answer is turned into a uniform number with that outcome, and the real code is called with it.
"""

import itertools

import torch

import mtp.decoding
import mtp.proposer
import mtp.verify
from mtp import Transformer, Uniforms, decode
from mtp.model import ModelConfig
from mtp.sampling import pick
from mtp.tree import accept_path
from mtp.verify import verify_exact


class Tape:
    """One run's answers: those of `prefix` first, then the first possible one of each new decision."""

    def __init__(self, prefix):
        self.prefix = prefix
        self.asked = []  # for each decision: possible answers, and which of them was given
        self.probability = 1.0

    def choose(self, weights):
        total = sum(weights)
        options = [(answer, weight / total) for answer, weight in enumerate(weights) if weight > 0]
        place = self.prefix[len(self.asked)] if len(self.asked) < len(self.prefix) else 0
        self.asked.append((len(options), place))
        answer, share = options[place]
        self.probability *= share
        return answer

    def next_prefix(self):
        places = [place for _, place in self.asked]
        while places and places[-1] + 1 == self.asked[len(places) - 1][0]:
            places.pop()
        return [*places[:-1], places[-1] + 1] if places else None


class Decision:
    """A uniform number that is compared once: smaller than `share` with that probability."""

    def __init__(self, tape):
        self.tape = tape

    def __lt__(self, share):
        share = min(max(float(share), 0.0), 1.0)
        return self.tape.choose([share, 1 - share]) == 0


def _scripted_pick(tape, first=None):
    """`first`, if given, is what the first call returns, whatever it is asked; that is no decision."""
    given = [] if first is None else [first]

    def picked(p, u):
        rows = p.reshape(-1, p.shape[-1])
        assert len(rows) == 1, "one sequence at a time"
        if given:
            return torch.full(p.shape[:-1], given.pop())
        token = tape.choose(rows[0].tolist())
        cumulative = rows[0].double().cumsum(0) / rows[0].double().sum()
        middle = cumulative[token] - 0.5 * (cumulative[token] - (cumulative[token - 1] if token else 0.0))
        result = pick(p, middle.to(p.dtype).expand(p.shape[:-1]))
        assert int(result) == token
        return result

    return picked


def _scripted_rule(tape):
    def rule(drafts, q, p, u_accept, u_next, counts=None):
        u = torch.full_like(u_accept, 0.5)
        real = drafts.shape[1] if counts is None else int(counts[0])
        for i in range(real):
            token = drafts[0, i]
            share = min(1.0, float(p[0, i, token]) / (1.0 if q is None else float(q[0, i, token])))
            accepted = tape.choose([share, 1 - share]) == 0
            u[0, i] = share / 2 if accepted else (1 + share) / 2
            if not accepted:
                break
        verdict = verify_exact(drafts, q, p, u, u_next, counts)
        assert int(verdict.accepted) == (i if real and not accepted else real)
        return verdict

    return rule


def joint(monkeypatch, target, proposer, prompt, length, sampling, *, path_rule=accept_path):
    """Exact joint distribution (V, …, V) of `length` tokens that decode() gives after prompt and prefill.

    The last token of `prompt` is what the prefill emits, so that only the rounds are enumerated. `path_rule`
    stands for `mtp.tree.accept_path`.
    """
    vocab = target.config.vocab_size
    table = torch.zeros((vocab,) * length, dtype=torch.float64)
    prompt, first = prompt[:-1], prompt[-1]
    prefix = []
    while prefix is not None:
        tape = Tape(prefix)
        for home in (mtp.verify, mtp.proposer):
            monkeypatch.setattr(home, "pick", _scripted_pick(tape))
        monkeypatch.setattr(mtp.decoding, "pick", _scripted_pick(tape, first))

        def scripted_path(parents, tokens, p, uniforms, tape=tape):
            return path_rule(parents, tokens, p, [Decision(tape) for _ in parents])

        monkeypatch.setattr(mtp.decoding, "accept_path", scripted_path)
        result = decode(
            target, prompt, proposer, max_new_tokens=length + 1, sampling=sampling, rule=_scripted_rule(tape),
            generator=Uniforms(torch.Generator().manual_seed(0)),
        )  # fmt: skip
        table[tuple(result.tokens[0][1:])] += tape.probability
        prefix = tape.next_prefix()
    assert abs(float(table.sum()) - 1) < 1e-9
    return table


@torch.inference_mode()
def expected_joint(target, prompt, length, sampling):
    """The target's own joint distribution of `length` tokens, one whole pass a prefix."""
    vocab = target.config.vocab_size
    table = torch.ones((vocab,) * length, dtype=torch.float64)
    for depth in range(length):
        for prefix in itertools.product(range(vocab), repeat=depth):
            ids = torch.tensor([[*prompt, *prefix]])
            logits = target.head(target.forward(ids, target.new_cache(1, ids.shape[1])).hidden[:, -1])
            p = sampling.probabilities(logits)[0].double()
            table[prefix] *= p.view(-1, *[1] * (length - depth - 1))
    return table


def distance(one, other):
    """Total variation distance."""
    return float((one - other).abs().sum() / 2)


def tiny_target(seed=0, vocab=3, sharpness=2.0):
    """A random transformer whose predictions depend on all of the text, on its order and on positions."""
    torch.manual_seed(seed)
    sizes = ModelConfig(vocab_size=vocab, d_model=16, n_layers=2, n_heads=2, d_ff=16, n_mtp=0, max_length=64)
    target = Transformer(sizes)
    with torch.no_grad():
        target.final_gain.mul_(sharpness)
        for block in target.blocks:
            block.qkv.mul_(3)
            block.out.mul_(8)
    return target.eval().fold()
