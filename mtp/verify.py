"""Which drafted tokens stay, and which token follows them: pure functions on probabilities.

All rules take (drafts, q, p, u_accept, u_next, counts) and return a Verdict:

    drafts    (B, k)       drafted tokens
    q         (B, k, V)    what each draft was drawn from; None: drafted deterministically (a one-hot)
    p         (B, k+1, V)  the target's distributions at the drafted positions and one beyond
    u_accept  (B, k)       uniform numbers in [0, 1), one an accept-or-reject decision
    u_next    (B,)         uniform numbers for the token after the accepted prefix, independent of u_accept
    counts    (B,) or None how many drafts of each row are real (the rest is padding)

Every row emits its accepted prefix and exactly one token more: from the residual after a rejection, from the target's
next distribution (the bonus token) when all were accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from .sampling import pick


class Verdict(NamedTuple):
    accepted: Tensor  # (B,) length of the accepted prefix
    next_token: Tensor  # (B,) the token after it


VerifyRule = Callable[[Tensor, "Tensor | None", Tensor, Tensor, Tensor, "Tensor | None"], Verdict]


def verify_exact(
    drafts: Tensor, q: Tensor | None, p: Tensor, u_accept: Tensor, u_next: Tensor, counts: Tensor | None = None
) -> Verdict:
    """Rejection sampling that keeps the target's distribution (arXiv 2211.17192, algorithm 1; 2302.01318).

    Draft x is accepted with probability min(1, p(x) / q(x)); after the first rejection the next token is drawn from
    the normalised (p - q)+. Lossless because min(p, q) + (p - q)+ = p.
    """
    q = _one_hot_if_none(drafts, q, p)
    q_drafts, p_drafts = _of_drafts(drafts, q, p)
    accepted = _prefix(u_accept * q_drafts < p_drafts, counts)
    return Verdict(accepted, pick(_residual_or_bonus(q, p, accepted, counts), u_next))


def verify_greedy(drafts: Tensor, best: Tensor, counts: Tensor | None = None) -> Verdict:
    """Accept while the draft equals the target's argmax; `best` (B, k+1) holds the argmaxes.

    The next token is the argmax after the accepted prefix: the correction at a miss, else the bonus.
    """
    accepted = _prefix(drafts == best[:, : drafts.shape[1]], counts)
    return Verdict(accepted, best.gather(1, accepted[:, None]).squeeze(1))


def verify_threshold(
    drafts: Tensor,
    q: Tensor | None,
    p: Tensor,
    u_accept: Tensor,
    u_next: Tensor,
    counts: Tensor | None = None,
    *,
    ratio: float,
) -> Verdict:
    """LOSSY, for teaching: accept iff p(x) >= ratio * q(x), then as the exact rule.

    Accepts more than the exact rule and no longer samples from p. On p = (.6, .3, .1), q = (.2, .3, .5) it gives
    (.7, .3, 0) with ratio .5, and q itself with ratio .1. Use it through `functools.partial(verify_threshold, ratio=…)`
    as the `rule` of `decode`.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio must lie in (0, 1], got {ratio!r}")
    q = _one_hot_if_none(drafts, q, p)
    q_drafts, p_drafts = _of_drafts(drafts, q, p)
    accepted = _prefix(p_drafts >= ratio * q_drafts, counts)
    return Verdict(accepted, pick(_residual_or_bonus(q, p, accepted, counts), u_next))


def acceptance_probability(q: Tensor, p: Tensor) -> Tensor:
    """Chance that the exact rule accepts a draft from q: sum of min(p, q), which is 1 - TV(p, q). (…, V) to (…)."""
    return torch.minimum(p, q).sum(-1)


def _one_hot_if_none(drafts: Tensor, q: Tensor | None, p: Tensor) -> Tensor:
    return F.one_hot(drafts, p.shape[-1]).to(p.dtype) if q is None else q


def _of_drafts(drafts: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """q and p of the drafted tokens, (B, k) each."""
    index = drafts[..., None]
    return q.gather(-1, index).squeeze(-1), p[:, : drafts.shape[1]].gather(-1, index).squeeze(-1)


def _prefix(kept: Tensor, counts: Tensor | None) -> Tensor:
    """Length of each row's run of leading True, (B, k) to (B,): the prefix, not the number of matches."""
    if counts is not None:
        kept = kept & (torch.arange(kept.shape[1], device=kept.device) < counts[:, None])
    return kept.long().cumprod(1).sum(1)


def _residual_or_bonus(q: Tensor, p: Tensor, accepted: Tensor, counts: Tensor | None) -> Tensor:
    """Weights (B, V) of the next token: (p - q)+ where a draft was rejected, p where none was left to reject."""
    k = q.shape[1]
    if counts is not None:  # beyond a row's last draft there is nothing to subtract
        q = q * (torch.arange(k, device=q.device) < counts[:, None])[..., None]
    weights = p.clone()
    weights[:, :k] -= q
    at = accepted[:, None, None].expand(-1, 1, p.shape[-1])
    residual = weights.gather(1, at).squeeze(1).clamp_(min=0)  # (B, V)
    # p = q up to rounding leaves nothing, and then any draw from p is as good.
    return torch.where(residual.sum(-1, keepdim=True) > 0, residual, p.gather(1, at).squeeze(1))
