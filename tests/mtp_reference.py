"""Slow and plain re-computations that tests compare the library with, and small models to run them on."""

import argparse
import functools
from dataclasses import replace
from pathlib import Path

import torch

from mtp import ModelConfig, TrainSettings, Transformer, encode, train
from mtp.model import enter_module, run_block, unit

SMALL = ModelConfig(vocab_size=16, d_model=32, n_layers=2, n_heads=2, d_ff=48, n_mtp=3, max_length=96)


def small_model(seed=0, config=SMALL):
    """An untrained model whose gains differ from one and whose embedding is large enough for decided argmaxes."""
    torch.manual_seed(seed)
    model = Transformer(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "gain" in name:
                parameter.copy_(torch.rand_like(parameter) + 0.5)
        model.embedding.mul_(4)
    return model.eval().fold()


@functools.cache
def trained_model():
    """A small model trained for seconds on one file's text: its drafts are accepted sometimes, at every length."""
    text = torch.tensor(encode(Path(argparse.__file__).read_text(encoding="utf-8")), dtype=torch.uint8)
    settings = TrainSettings(steps=150, batch=4, length=48)
    model = train(replace(SMALL, vocab_size=128), settings, text=text)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.mtp:  # far from one, so that a norm left out is no small thing
            module.post_gain.mul_(torch.rand(module.post_gain.shape, generator=generator) + 0.5)
    return model.eval().fold()


def prompts_for(model, count, seed=0, shortest=2, longest=20):
    """Random prompts of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(shortest, longest + 1, (count,), generator=generator).tolist()
    return [torch.randint(model.config.vocab_size, (n,), generator=generator).tolist() for n in lengths]


def full_hidden(model, ids):
    """The target's final hidden states of a whole sequence at once, without a cache: (1, T, d)."""
    w = model.weights()
    x = w.embedding[torch.tensor(ids)]
    for block in w.blocks:
        x = run_block(x, block, model.config.n_heads, model.rope[: len(ids)])
    return (unit(x) * w.final_gain)[None]


@torch.no_grad()
def greedy(model, prompt, count):
    """Greedy continuation, recomputing everything for each token."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(int(model.head(full_hidden(model, ids)[:, -1]).argmax()))
    return ids[len(prompt) :]


@torch.no_grad()
def draft(model, known, k):
    """Greedy drafts after the known tokens, as the modules were trained: every row recomputed, no cache.

    Module j takes, at row i, the hidden state of depth j - 1 and token i + j. Beyond the last module, that one is
    continued by a row at the next position: its own output and the newest draft.
    """
    w, heads = model.weights(), model.config.n_heads
    rows = len(known) - 1
    hidden = full_hidden(model, known[:rows])[0]  # (rows, d)
    tokens, drafts = list(known), []
    for j in range(1, k + 1):
        if j <= len(w.modules):
            module = w.modules[j - 1]
            inputs, ids = hidden, tokens[j : j + rows]
        else:
            inputs, ids = torch.cat([inputs, hidden[-1:]]), [*ids, tokens[-1]]
        x = enter_module(module, torch.tensor(ids), inputs)
        hidden = unit(run_block(x, module.block, heads, model.rope[: len(ids)])) * module.post_gain
        drafts.append(int((hidden[-1] @ w.head).argmax()))
        tokens.append(drafts[-1])
    return drafts
