"""A second stage of training: the MTP modules learn the frozen main model's own distributions.

Joint training teaches a module what the text says. What decides whether its draft is accepted is what the main model
says there: at temperature 1 a draft is accepted with probability 1 - TV(p, q), p being the main model's distribution
and q the module's. So each module is trained towards p itself, on the same text (as FastMTP does with text that the
model has written, arXiv 2509.18362). Main model, embedding and head stay as they are, and so does every output.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .data import sample_batch
from .drafter_training import DrafterStep, FrozenTarget, train_drafter
from .model import TargetOutput, Transformer, enter_module, run_block, unit


@dataclass(frozen=True)
class DistillSettings:
    """How to distil; the defaults are the shipped checkpoint's. lr: Muon's peak rate, AdamW's is a tenth of it."""

    steps: int = 2000
    batch: int = 8
    length: int = 256
    lr: float = 0.01
    seed: int = 1


class ModuleStudents(nn.Module):
    """Copies of a model's MTP modules, to be trained by `train_drafter` against that model."""

    feature_layers: tuple[int, ...] = ()

    def __init__(self, model: Transformer):
        super().__init__()
        if not model.mtp:
            raise ValueError("this model has no MTP modules (n_mtp = 0): there is nothing to distil")
        self.n_heads = model.config.n_heads
        self.mtp = deepcopy(model.mtp).requires_grad_(True)
        frozen = model.weights()
        for name, value in (("embedding", frozen.embedding), ("head", frozen.head), ("rope", model.rope)):
            self.register_buffer(name, value.detach(), persistent=False)

    def loss(self, ids: Tensor, output: TargetOutput, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Total variation plus half the cross-entropy, both towards p, mean over the modules.

        The first is what acceptance depends on; the second has a gradient where q is far off and the first has none.
        """
        parts = [
            (p - log_q.exp()).abs().sum(-1).mean() / 2 - 0.5 * (p * log_q).sum(-1).mean()
            for p, log_q in self._pairs(ids, output.hidden, logits)
        ]
        return torch.stack(parts).mean()

    def acceptance(self, ids: Tensor, output: TargetOutput, logits: Tensor) -> list[Tensor]:
        """1 - TV(p, q) of each module at each position, (B * rows,) each."""
        return [torch.minimum(p, log_q.exp()).sum(-1) for p, log_q in self._pairs(ids, output.hidden, logits)]

    def _pairs(self, ids: Tensor, hidden: Tensor, logits: Tensor) -> list[tuple[Tensor, Tensor]]:
        """(p, log q) of each module, (B * rows, V) each: ids (B, T), the model's hidden (B, T, d) and logits (B, T, V).

        Row i of module k (from 1) predicts token i + k + 1, as the model does at i + k.
        """
        rows = ids.shape[1] - len(self.mtp)
        hidden, pairs = hidden[:, :rows].flatten(0, 1), []
        for k, module in enumerate(self.mtp, start=1):
            w = module.weights(self.embedding)
            x = enter_module(w, ids[:, k : rows + k], hidden)
            hidden = unit(run_block(x, w.block, self.n_heads, self.rope[:rows])) * w.post_gain
            pairs.append((logits[:, k : rows + k].flatten(0, 1).softmax(-1), F.log_softmax(hidden @ self.head, -1)))
        return pairs


def distil(
    model: Transformer,
    text: Tensor,
    settings: DistillSettings | None = None,
    *,
    on_step: Callable[[DrafterStep], None] | None = None,
) -> Transformer:
    """Train the modules of a folded model in place on windows of `text`, uint8 (bytes,); returns it, folded.

    Raises ValueError for a model without modules, or as `train_drafter` does; FloatingPointError for a loss that is not
    finite.
    """
    students = ModuleStudents(model)
    chosen = asdict(settings or DistillSettings())
    chosen["length"] += len(model.mtp)  # so many positions are trained, whatever the number of modules
    train_drafter(students, model, text, on_step=on_step, **chosen)
    model.mtp.load_state_dict(students.mtp.state_dict())
    return model.eval().fold()


@torch.no_grad()
def acceptance_rates(model: Transformer, text: Tensor, *, windows: int = 64, length: int = 256) -> list[float]:
    """Mean 1 - TV(p, q) of each module over random windows of a text (bytes,), the same ones in every call."""
    students, generator = ModuleStudents(model), torch.Generator().manual_seed(0)
    window, rates = length + len(model.mtp), []
    frozen = FrozenTarget(model, 8, window, students.feature_layers)
    for _ in range(windows // 8):
        ids = sample_batch(text, 8, window, generator).to(model.device)
        rates.append([part.mean().item() for part in students.acceptance(ids, *frozen(ids))])
    return torch.tensor(rates).mean(0).tolist()
