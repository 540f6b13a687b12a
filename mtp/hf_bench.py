"""The same weights in transformers' own `generate`, as a yardstick for this library's baseline."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence

import torch

from .decoding import decode
from .drafters import NativeMTP
from .export_hf import export_hf, load_hf
from .model import Transformer


def time_hf(model: Transformer, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> dict[str, float]:
    """CPU seconds per output token, greedy, prefill included on all sides: medians over prompts, interleaved.

    Routes: this library's loop without and with its MTP modules, transformers without and with `use_mtp`.
    """
    with tempfile.TemporaryDirectory() as folder:
        hf = load_hf(export_hf(model, folder))
        hf.generation_config.pad_token_id = 0
        native = NativeMTP(model)

        def transformers_run(ids: Sequence[int], use_mtp: bool) -> None:
            hf.generate(torch.tensor([list(ids)]), max_new_tokens=max_new_tokens, do_sample=False, use_mtp=use_mtp)

        routes = {
            "ours": lambda ids: decode(model, ids, max_new_tokens=max_new_tokens),
            "ours with MTP": lambda ids: decode(model, ids, native, max_new_tokens=max_new_tokens),
            "transformers": lambda ids: transformers_run(ids, False),
            "transformers with MTP": lambda ids: transformers_run(ids, True),
        }
        seconds: dict[str, list[float]] = {name: [] for name in routes}
        for ids in [prompts[0], *prompts]:  # the first turn is the warm-up
            for name, run in routes.items():
                began = time.process_time()
                run(ids)
                seconds[name].append((time.process_time() - began) / max_new_tokens)
        return {name: statistics.median(values[1:]) for name, values in seconds.items()}
