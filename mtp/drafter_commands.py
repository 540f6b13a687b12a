"""The command `python -m mtp train-drafter`: the part of the command line that makes drafters."""

from __future__ import annotations

from pathlib import Path

from .options import add_threads, check_numbers, check_output, use_threads
from .progress import show_progress


def add_commands(commands) -> list:
    """Register with argparse's sub-parsers; returns the new parsers (the caller adds --checkpoint, the target)."""
    train = commands.add_parser("train-drafter", help="train a drafter against a frozen target")
    train.add_argument("--route", required=True, help="independent, eagle, … (see mtp/routes.py)")
    train.add_argument("--out", type=Path, help="checkpoint to write (default: mtp/checkpoints/ROUTE.safetensors)")
    train.add_argument("--steps", type=int, help="default: as the shipped checkpoint")
    train.add_argument("--batch", type=int)
    train.add_argument("--length", type=int, help="tokens of a training window")
    train.add_argument("--lr", type=float, help="Muon's peak learning rate; AdamW's is a tenth")
    train.add_argument("--seed", type=int, default=0)
    add_threads(train)
    train.set_defaults(run=train_command)
    return [train]


def train_command(arguments) -> int:
    """Train, save with provenance, print the held-out loss. Returns the exit status."""
    check_numbers(arguments)
    use_threads(arguments)
    import platform

    import torch

    from .checkpoint import DEFAULT_CHECKPOINT, load
    from .data import load_split
    from .drafter_checkpoint import save_module
    from .drafter_training import evaluate_drafter, train_drafter
    from .routes import CHECKPOINTS, ROUTES, new_drafter, trainable

    target = load(arguments.checkpoint or DEFAULT_CHECKPOINT)
    drafter = new_drafter(arguments.route, target, seed=arguments.seed)
    if arguments.route not in trainable():  # what it would write could not be loaded
        raise ValueError(f"route {arguments.route!r} drafts with what {ROUTES[arguments.route].checkpoint!r} trains")
    out = arguments.out or CHECKPOINTS / f"{arguments.route}.safetensors"
    check_output(out, "--out")
    settings = dict(ROUTES[arguments.route].training)
    given = {name: getattr(arguments, name) for name in ("steps", "batch", "length", "lr")}
    settings |= {name: value for name, value in given.items() if value is not None}
    text, held_out = load_split()
    train_drafter(drafter, target, text, seed=arguments.seed, on_step=show_step, **settings)
    window = {name: settings[name] for name in ("batch", "length") if name in settings}
    loss = evaluate_drafter(drafter, target, held_out, **window)
    record = {
        "settings": {**settings, "seed": arguments.seed},
        "text": f"standard library of Python {platform.python_version()}",
        "held_out_loss": round(loss, 4),
        "torch": torch.__version__,
    }
    save_module(drafter, out, route=arguments.route, target=target, training=record)
    print(f"{out}: {sum(p.numel() for p in drafter.parameters())} parameters, held-out loss {loss:.4f}")
    return 0


def show_step(report) -> None:
    """One line of progress, from a DrafterStep."""
    line = f"step {report.step}/{report.steps}  loss {report.loss:.4f}  {report.seconds:.0f} s"
    show_progress(line, report.step, report.steps, every=20)
