"""A preallocated key/value cache whose length is rolled back rather than its contents erased.

Slot j of a sequence holds the keys and values of its j-th token. A forward pass over m new tokens writes slots
`length … length + m - 1`; rejecting some of them only moves `length` back, and the next pass overwrites them. This is
what inference engines do as well.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Slots:
    """Where one forward pass over m tokens of B sequences writes, and what each of these tokens may see.

    Made once a pass by `KVCache.reserve` and shared by its layers.
    """

    def __init__(self, start: int | None, end: int, mask: Tensor | None, index=None, positions=None):
        self.start, self.end = start, end  # start is None where sequences differ in length
        self.mask = mask  # additive, (m, end) or (B * H, m, end); None: everything is visible
        self.index = index  # ragged only: rows (B * H, 1) and slots (B * H, m)
        self.positions = positions  # ragged only: (B, m), the slots once a sequence

    def attend(self, layer: Tensor, qkv: Tensor) -> Tensor:
        """Store keys and values in a layer (2, B * H, S, dh), then attend from q to all that the mask shows.

        qkv (3, B * H, m, dh), q already scaled. Returns (B * H, m, dh). Plain batched products: for a few queries they
        are faster on a CPU than the fused kernel.
        """
        if self.index is None:
            layer[:, :, self.start : self.end] = qkv[1:]
        else:
            layer[:, self.index[0], self.index[1]] = qkv[1:]
        keys, values = layer[:, :, : self.end].unbind(0)  # (B * H, end, dh) each
        q, keys_t = qkv[0], keys.mT
        scores = torch.bmm(q, keys_t) if self.mask is None else torch.baddbmm(self.mask, q, keys_t)  # (B * H, m, end)
        return torch.bmm(torch.softmax(scores, -1), values)


class KVCache:
    """Keys and values of `n_layers` layers for B sequences of at most `capacity` tokens.

    `lengths` (a list of B ints, on the host) says how many tokens of each sequence are in. Zeros, not uninitialised
    memory: a masked NaN would still poison the attention's weighted sum.
    """

    def __init__(
        self,
        n_layers: int,
        batch: int,
        capacity: int,
        n_heads: int,
        d_head: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ):
        self.store = torch.zeros(n_layers, 2, batch * n_heads, capacity, d_head, device=device, dtype=dtype)
        self.layers = self.store.unbind(0)  # each (2, B * H, S, dh)
        self.n_heads = n_heads
        self.capacity = capacity
        self.lengths = [0] * batch
        # Row i of the last m columns' causal pattern, preceded by `capacity` visible columns: any uniform mask of up
        # to WIDEST new tokens is a slice of it, so the usual pass builds none.
        widest = min(capacity, 64)
        pattern = torch.full((widest, widest), float("-inf"), device=device, dtype=dtype).triu(1)
        self._causal = torch.cat([pattern.new_zeros(widest, capacity), pattern], dim=1)
        self._rows = torch.arange(batch * n_heads, device=device)[:, None]  # (B * H, 1)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self.store.numel() * self.store.element_size()

    @property
    def nbytes_used(self) -> int:
        """Bytes that the valid slots take."""
        return self.bytes_per_token * sum(self.lengths)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one sequence takes, over all layers."""
        return self.store[:, :, : self.n_heads, 0].numel() * self.store.element_size()

    def reserve(self, m: int, block_mask: Tensor | None = None, *, causal: bool = True) -> Slots:
        """Slots for m more tokens of every sequence; lengths advance only by `advance`.

        `block_mask`, bool (m, m) or (B, m, m), says which of the new tokens each new token sees (row: query). Without
        one, each sees those up to itself, or all of them where `causal` is False (a drafter of whole blocks). Older
        tokens are always visible. Raises IndexError where the cache is too short.
        """
        if max(self.lengths) + m > self.capacity:
            raise IndexError(f"KV cache holds {self.capacity} tokens, {max(self.lengths)} + {m} were asked for")
        start = self.lengths[0]
        uniform = all(length == start for length in self.lengths)
        if uniform and block_mask is None:
            return Slots(start, start + m, self._uniform_mask(start, m) if causal else None)
        if uniform and block_mask is not None and (block_mask.ndim == 2 or len(block_mask) == 1):  # one tree for all
            mask = self.store.new_zeros(m, start + m)
            mask[:, start:].masked_fill_(~block_mask.view(m, m), float("-inf"))
            return Slots(start, start + m, mask)
        lengths = torch.tensor(self.lengths, device=self.store.device)[:, None]  # (B, 1)
        end = max(self.lengths) + m
        slots = lengths + torch.arange(m, device=lengths.device)  # (B, m)
        columns = torch.arange(end, device=lengths.device)
        if block_mask is None:
            visible = columns <= (slots if causal else slots[:, -1:].expand(-1, m))[..., None]  # (B, m, end)
        else:
            offset = (columns - lengths)[:, None].expand(-1, m, -1)  # (B, m, end): which new token a column is
            inside = block_mask.expand(len(self.lengths), m, m).gather(2, offset.clamp(0, m - 1))
            visible = (offset < 0) | ((offset < m) & inside)
        mask = self.store.new_zeros(visible.shape).masked_fill_(~visible, float("-inf"))
        per_head = mask.repeat_interleave(self.n_heads, dim=0), slots.repeat_interleave(self.n_heads, dim=0)
        return Slots(None, end, per_head[0], (self._rows, per_head[1]), slots)

    def _uniform_mask(self, start: int, m: int) -> Tensor | None:
        if m == 1:
            return None
        if m <= len(self._causal):
            first = self.capacity - start
            return self._causal[:m, first : first + start + m]
        mask = self.store.new_zeros(m, start + m)
        mask[:, start:] = mask.new_full((m, m), float("-inf")).triu(1)
        return mask

    def advance(self, m: int) -> None:
        """Count m more tokens of every sequence as in."""
        self.lengths = [length + m for length in self.lengths]

    def rollback(self, lengths: Sequence[int]) -> None:
        """Move every sequence's length to `lengths`; nothing is erased."""
        self.lengths = list(lengths)

    def keep(self, lengths: Sequence[int], paths: Sequence[Sequence[int]]) -> None:
        """Compact a verified tree: of the tokens written from `lengths[b]` on, keep only those at offsets `paths[b]`,
        in that order, so that the accepted path lies as if it had been fed alone; roll back to its end.
        """
        for row, (length, path) in enumerate(zip(lengths, paths, strict=True)):
            if list(path) != list(range(len(path))):
                # The right side is a copy (advanced indexing), so overlapping slots are safe.
                heads = slice(row * self.n_heads, (row + 1) * self.n_heads)
                kept = self.store[:, :, heads, [length + i for i in path]]
                self.store[:, :, heads, length : length + len(path)] = kept
        self.rollback([length + len(path) for length, path in zip(lengths, paths, strict=True)])
