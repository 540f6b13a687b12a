"""A small transformer with native multi-token prediction: decode, measure, train.

    from mtp import NativeMTP, decode, encode, load
    model = load()
    run = decode(model, encode("def main("), NativeMTP(model), max_new_tokens=64)

Names are imported on first use, so that `python -m mtp --help` does not wait for torch.
"""

from importlib import import_module

_HOME = {
    "CheckpointError": "checkpoint", "load": "checkpoint", "read_metadata": "checkpoint", "save": "checkpoint",
    "END_OF_FILE": "data", "decode_text": "data", "encode": "data", "load_split": "data",
    "decode": "decoding",
    "DistillSettings": "distillation", "distil": "distillation",
    "NativeMTP": "drafters",
    "Generation": "generation",
    "ModelConfig": "model", "Transformer": "model",
    "load_drafter": "routes",
    "Context": "proposer", "Proposal": "proposer", "Proposer": "proposer",
    "GREEDY": "sampling", "Sampling": "sampling", "Uniforms": "sampling",
    "TrainSettings": "training", "evaluate": "training", "train": "training",
    "verify_exact": "verify", "verify_greedy": "verify", "verify_threshold": "verify",
}  # fmt: skip

__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *__all__})
