"""Muon: momentum whose matrix updates are orthogonalised (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

Everything is fp32: on a CPU bf16 is emulated and slower.
"""

from __future__ import annotations

from collections import defaultdict

import torch
from torch import Tensor


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz iteration towards the nearest semi-orthogonal matrices; (N, rows, columns) in and out.

    The quintic's coefficients are Jordan's: singular values end between about 0.7 and 1.2, which is enough.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, then orthogonalised. A parameter (…, rows, columns) counts as a stack of matrices.

    Matrices of one shape are orthogonalised together: a deep, narrow model has many small ones.
    """

    def __init__(self, params, lr: float = 0.02, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            by_shape = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["momentum"] = torch.zeros_like(parameter)
                state["momentum"].lerp_(parameter.grad, 1 - group["momentum"])
                update = parameter.grad.lerp(state["momentum"], group["momentum"])
                rows, columns = parameter.shape[-2:]
                by_shape[rows, columns].append((parameter, update.view(-1, rows, columns)))
            for (rows, columns), entries in by_shape.items():
                updates = orthogonalise(torch.cat([update for _, update in entries]))
                scale = max(1.0, rows / columns) ** 0.5
                for (parameter, _), update in zip(entries, updates.split([len(u) for _, u in entries]), strict=True):
                    parameter.add_(update.view_as(parameter), alpha=-group["lr"] * scale)
        return loss
