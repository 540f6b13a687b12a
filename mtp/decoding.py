"""The decoding loop: one for the autoregressive baseline (no proposer), for any drafter, and for any batch.

Invariants, between rounds and for each sequence: the target's cache holds (known tokens - 1) tokens; a round emits its
accepted drafts and one token more, unless EOS or `max_new_tokens` cuts it short; nothing follows EOS.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .cache import KVCache
from .generation import Generation, Round, RowRound
from .model import TargetOutput, Transformer
from .proposer import Context, Proposal, Proposer
from .ragged import place, window
from .sampling import GREEDY, Sampling, Uniforms, pick
from .tree import accept_path, ancestor_mask, depths
from .verify import VerifyRule, verify_exact, verify_greedy


@torch.inference_mode()
def decode(
    model: Transformer,
    prompts: Sequence[int] | Sequence[Sequence[int]],
    proposer: Proposer | None = None,
    *,
    k: int | None = None,
    max_new_tokens: int = 128,
    sampling: Sampling = GREEDY,
    eos: int | None = None,
    generator: torch.Generator | Uniforms | None = None,
    rule: VerifyRule = verify_exact,
    on_start: Callable[[Context], None] | None = None,
    on_round: Callable[[Round, Context, KVCache], None] | None = None,
) -> Generation:
    """Continue one prompt (a list of ids) or a batch of prompts of any lengths.

    `k` drafts a round, by default the proposer's own (`proposer.k`); 0, or no proposer, is plain autoregression. All
    randomness comes from `generator` (a fresh one with seed 0 when None). `rule` verifies sampled chains; greedy runs
    compare argmaxes. `on_start` is called once when the prompts are fed and each first token is known, `on_round` after
    each round with the state after it; both see the context as it is, and must not change it.

    Raises ValueError for an empty prompt, ids outside the vocabulary, prompt + max_new_tokens beyond the model's
    max_length, k without a proposer or beyond the proposer's; FloatingPointError for logits that are not finite.
    """
    prompts = _checked_prompts(model, prompts, max_new_tokens, eos)
    k = _checked_k(proposer, k)
    uniforms = generator if isinstance(generator, Uniforms) else Uniforms(generator or torch.Generator().manual_seed(0))
    run = _Run(model, prompts, proposer if k else None, k, max_new_tokens, sampling, eos, uniforms, rule)
    run.prefill()
    if on_start:
        on_start(run.context)
    began = time.process_time()
    while run.context.active:
        record = run.round()
        if on_round:
            on_round(record, run.context, run.cache)
    cpu_seconds = time.process_time() - began
    lengths = [len(prompt) for prompt in prompts]
    return Generation(run.outputs, run.rounds, run.prefill_seconds, cpu_seconds, lengths, run.cache.nbytes_used)


class _Run:
    """State of one call of `decode`."""

    def __init__(self, model, prompts, proposer, k, max_new_tokens, sampling, eos, uniforms, rule):
        self.model, self.proposer, self.k = model, proposer, k
        self.max_new_tokens, self.sampling, self.eos = max_new_tokens, sampling, eos
        self.uniforms, self.rule = uniforms, rule
        self.batch = len(prompts)
        # Ended sequences stay in the batch and are fed along, hence room for all drafts beyond the end.
        self.room = room = max(k, getattr(proposer, "nodes", k))
        capacity = max(map(len, prompts)) + max_new_tokens + room
        self.device = model.device
        self.cache = model.new_cache(self.batch, capacity)
        tokens = torch.zeros(self.batch, capacity + room + 1, dtype=torch.long, device=self.device)
        for row, prompt in enumerate(prompts):
            tokens[row, : len(prompt)] = torch.tensor(prompt, device=self.device)
        self.context = Context(tokens, [len(prompt) for prompt in prompts], sampling, capacity, list(range(self.batch)))
        self.outputs: list[list[int]] = [[] for _ in prompts]
        self.rounds: list[Round] = []
        self.prefill_seconds = 0.0

    # Prefill ---------------------------------------------------------------------------------------------------------

    def prefill(self) -> None:
        """Feed the prompts at once, right-padded (no token sees the padding after it), and emit the first token."""
        began = time.perf_counter()
        lengths = list(self.context.known)
        output = self._forward(self.context.tokens[:, : max(lengths)])
        self.cache.rollback(lengths)
        logits = self.model.head(window(output.hidden, [n - 1 for n in lengths], 1))[:, 0]  # (B, V)
        _check_finite(logits)
        if self.sampling.greedy:
            first = logits.argmax(-1)
        else:
            first = pick(self.sampling.probabilities(logits), self._draw(1)[:, 0])
        place(self.context.tokens, lengths, first[:, None])
        self._emit([[token] for token in first.tolist()])
        if self.proposer is not None:
            self.proposer.start(self.context, output)
        self.prefill_seconds = time.perf_counter() - began

    # One round -------------------------------------------------------------------------------------------------------

    def round(self) -> Round:
        """Draft, feed, verify, emit, roll back."""
        began = time.perf_counter()
        starts = [known - 1 for known in self.context.known]  # index of the token that is fed first
        rows = self.context.active
        # The last tokens need no drafts of their own: a round emits one token beyond its accepted drafts.
        k = min(self.k, max(self.max_new_tokens - len(self.outputs[row]) for row in rows) - 1)
        u = None if self.sampling.greedy else self._draw(2 * k + 1)  # (B, 2k+1): drafts, decisions, the next token
        proposal = self._propose(k, u)
        drafted = time.perf_counter()

        fed = window(self.context.tokens, starts, 1)  # (B, 1)
        if proposal is not None:
            fed = torch.cat([fed, proposal.tokens], 1)  # (B, k+1)
        shape = {} if proposal is None or proposal.parents is None else self._tree_shape(proposal, starts)
        output = self._forward(fed, **shape)
        logits = self.model.head(output.hidden)  # (B, k+1, V)
        _check_finite(logits)
        paths, following = self._verify(proposal, logits, u)
        verified = time.perf_counter()

        drafts = [[]] * self.batch if proposal is None else proposal.tokens.tolist()
        new: list[list[int]] = [[] for _ in range(self.batch)]
        kept = [0] * self.batch
        for row in rows:
            new[row] = [drafts[row][i] for i in paths[row]] + [following[row]]
            kept[row] = len(new[row])
        emitted = self._emit(new)
        if shape:
            self.cache.keep(starts, [[0, *(i + 1 for i in path)] for path in paths])
            output = _along(output, paths)
        self.cache.rollback([known - 1 for known in self.context.known])
        if self.proposer is not None and self.context.active:
            self.proposer.update(self.context, output, starts, kept)
        counts = [len(row) for row in drafts] if proposal is None or proposal.counts is None else proposal.counts
        levels = [max(depths(parents), default=0) for parents in proposal.parents] if shape else counts
        record = Round(
            tuple(RowRound(row, counts[row], len(paths[row]), len(emitted[row]), levels[row]) for row in rows),
            drafted - began,
            verified - drafted,
            time.perf_counter() - verified,
        )
        self.rounds.append(record)
        return record

    def _propose(self, k: int, u: Tensor | None) -> Proposal | None:
        if self.proposer is None or k == 0:
            return None
        proposal = self.proposer.propose(self.context, k, None if u is None else u[:, :k])
        if not proposal.tokens.shape[1]:
            return None
        limit = k if proposal.parents is None else self.room
        if proposal.tokens.shape[1] > limit:
            raise ValueError(f"{self.proposer.name}: drafted {proposal.tokens.shape[1]} tokens, at most {limit} wanted")
        return proposal

    def _verify(self, proposal: Proposal | None, logits: Tensor, u: Tensor | None) -> tuple[list[list[int]], list[int]]:
        """Indices of each row's accepted drafts, in order, and the token that follows them."""
        if proposal is None:
            token = logits[:, 0].argmax(-1) if u is None else pick(self.sampling.probabilities(logits[:, 0]), u[:, -1])
            return [[] for _ in range(self.batch)], token.tolist()
        if proposal.parents is not None:
            return self._verify_tree(proposal, logits, u)
        drafted = proposal.tokens.shape[1]
        counts = None if proposal.counts is None else torch.tensor(proposal.counts, device=self.device)
        if u is None:
            verdict = verify_greedy(proposal.tokens, logits.argmax(-1), counts)
        else:
            k = (u.shape[1] - 1) // 2
            p = self.sampling.probabilities(logits)
            verdict = self.rule(proposal.tokens, proposal.q, p, u[:, k : k + drafted], u[:, -1], counts)
        accepted, following = torch.stack(verdict).tolist()  # one trip to the host
        return [list(range(n)) for n in accepted], following

    # Trees -----------------------------------------------------------------------------------------------------------

    def _tree_shape(self, proposal: Proposal, starts: list[int]) -> dict[str, Tensor]:
        trees = zip(starts, proposal.parents, strict=True)
        positions = torch.tensor([[start, *(start + d for d in depths(parents))] for start, parents in trees])
        mask = torch.stack([ancestor_mask(parents) for parents in proposal.parents])
        return {"positions": positions.to(self.device), "block_mask": mask.to(self.device)}

    def _verify_tree(self, proposal: Proposal, logits: Tensor, u: Tensor | None) -> tuple[list[list[int]], list[int]]:
        p = self.sampling.probabilities(logits)
        nodes = None if u is None else self._draw(proposal.tokens.shape[1] + 1)
        paths, following = [], []
        for row, parents in enumerate(proposal.parents):
            choices = None if nodes is None else nodes[row].tolist()
            path, weights = accept_path(parents, proposal.tokens[row].tolist(), p[row], choices)
            paths.append(path)
            following.append(int(weights.argmax() if nodes is None else pick(weights, nodes[row, -1])))
        return paths, following

    # Bookkeeping -----------------------------------------------------------------------------------------------------

    def _forward(self, ids: Tensor, **shape) -> TargetOutput:
        features = () if self.proposer is None else self.proposer.feature_layers
        return self.model.forward(ids, self.cache, feature_layers=features, **shape)

    def _draw(self, count: int) -> Tensor:
        return self.uniforms.draw(self.batch, count).to(self.device)

    def _emit(self, rows: list[list[int]]) -> list[list[int]]:
        """Append each row's new tokens, cut at EOS and at max_new_tokens; returns what was appended."""
        emitted = []
        for row, new in enumerate(rows):
            new = new[: self.max_new_tokens - len(self.outputs[row])]
            if self.eos in new:
                new = new[: new.index(self.eos) + 1]
            self.outputs[row] += new
            if new:
                known = self.context.known[row]
                self.context.tokens[row, known : known + len(new)] = torch.tensor(new, device=self.device)
                self.context.known[row] += len(new)
            emitted.append(new)
        self.context.active = [
            row for row in self.context.active
            if len(self.outputs[row]) < self.max_new_tokens and self.outputs[row][-1] != self.eos
        ]  # fmt: skip
        return emitted


def _along(output: TargetOutput, paths: list[list[int]]) -> TargetOutput:
    """A tree's rows in the order of each accepted path, the root first; padded with the root."""
    longest = max(map(len, paths))
    index = torch.tensor([[0, *(i + 1 for i in path)] + [0] * (longest - len(path)) for path in paths])

    def gather(values: Tensor) -> Tensor:
        return values.gather(1, index.to(values.device)[..., None].expand(-1, -1, values.shape[-1]))

    return TargetOutput(gather(output.hidden), tuple(gather(feature) for feature in output.features))


def _check_finite(logits: Tensor) -> None:
    # The sum is one cheap operation, and a NaN or an infinity anywhere shows in it.
    if not math.isfinite(logits.sum().item()):
        raise FloatingPointError("the target's logits are not finite: damaged weights, or weights of another model")


def _checked_k(proposer: Proposer | None, k: int | None) -> int:
    if proposer is None:
        if k:
            raise ValueError(f"k={k} drafts need a proposer, e.g. NativeMTP(model)")
        return 0
    largest = proposer.k
    if k is None:
        return largest
    if not isinstance(k, int) or not 0 <= k <= largest:
        raise ValueError(f"k must be a whole number from 0 to {largest} for {proposer.name}, got {k!r}")
    return k


def _checked_prompts(model, prompts, max_new_tokens: int, eos: int | None) -> list[list[int]]:
    if isinstance(prompts, str) or (len(prompts) and isinstance(prompts[0], str)):
        raise ValueError("prompts are lists of ids: use mtp.encode(text)")
    if not len(prompts) or isinstance(prompts[0], int):
        prompts = [prompts]
    prompts = [[int(token) for token in prompt] for prompt in prompts]
    vocab, longest = model.config.vocab_size, model.config.max_length
    if not isinstance(max_new_tokens, int) or max_new_tokens < 1:
        raise ValueError(f"max_new_tokens must be a whole number of at least 1, got {max_new_tokens!r}")
    if eos is not None and not 0 <= eos < vocab:
        raise ValueError(f"eos must be an id below {vocab}, got {eos!r}")
    for number, prompt in enumerate(prompts):
        if not prompt:
            raise ValueError(f"prompt {number} is empty: the first token is predicted from at least one")
        if outside := [token for token in prompt if not 0 <= token < vocab]:
            raise ValueError(f"prompt {number} has id {outside[0]}, the vocabulary ends at {vocab - 1}")
        if len(prompt) + max_new_tokens > longest:
            raise ValueError(
                f"prompt {number}: {len(prompt)} tokens + max_new_tokens={max_new_tokens} exceed the model's "
                f"max_length={longest}; shorten the prompt or ask for fewer tokens"
            )
    return prompts
