"""Command line: `python -m mtp generate | bench | train | distil | train-drafter | export | serve | pack`.

Imports of torch wait until a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .drafter_commands import add_commands, show_step
from .options import add_threads, check_device, check_numbers, check_output, said, use_threads
from .packing import add_pack_command
from .progress import show_progress
from .remote.command import add_remote_options
from .server.command import add_serve_command

FIGURES = (".png", ".svg", ".pdf", ".jpg")
"""What the name of a figure may end in."""


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        return arguments.run(arguments)
    except (ValueError, OSError, FloatingPointError, IndexError, ImportError) as error:
        print(f"error: {said(error)}", file=sys.stderr)
        return 1
    except RuntimeError as error:
        if "allocate" not in str(error):  # torch's own words, on the CPU and on a GPU; anything else is a defect
            raise
        print(f"error: not enough memory, ask for less at a time: {said(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m mtp", description="A small transformer with native MTP.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    generate = commands.add_parser("generate", help="continue a prompt")
    generate.add_argument("--prompt", required=True, help="text to continue (ASCII)")
    generate.add_argument("--k", type=int, default=3, help="drafts a round, 0 for plain autoregression")
    generate.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    generate.set_defaults(run=_generate)

    bench = commands.add_parser("bench", help="compare numbers of drafts, or routes, with plain autoregression")
    bench.add_argument(
        "--k", type=int, nargs="*", default=[1, 2, 3, 4, 5, 6], help="drafts a round of native MTP; 0 is always run"
    )
    bench.add_argument("--routes", nargs="+", default=[], metavar="NAME", help="also these routes, see mtp/routes.py")
    bench.add_argument(
        "--schedule", type=int, nargs="?", const=False, metavar="TOKENS",
        help="with --routes dspark: also with its scheduler, which weighs each draft against what a step costs on this "
        "machine; TOKENS, if given, bounds what the target is fed a step over the batch",
    )  # fmt: skip
    bench.add_argument("--prompts", type=int, default=24, help="how many of the committed prompts")
    bench.add_argument("--kind", choices=("code", "prose", "repetitive"), default="code")
    bench.add_argument("--temperature", type=float, default=1.0, help="0 is greedy, and checks for equal output")
    bench.add_argument("--batch", type=int, default=1)
    bench.add_argument("--repeats", type=int, default=1, help="runs of each prompt, of which the median counts")
    bench.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    bench.add_argument("--png", type=Path, metavar="FILE", default=Path("mtp-bench.png"), help="write a figure")
    bench.add_argument("--hf", action="store_true", help="time transformers' generate on the same weights too")
    bench.set_defaults(run=_bench)

    train = commands.add_parser("train", help="train a model on the standard library's source text")
    train.add_argument("--out", type=Path, required=True, help="checkpoint to write")
    train.add_argument("--steps", type=int, default=2000)
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--device", default="cpu")
    train.add_argument("--layers", type=int, default=16)
    train.add_argument("--modules", type=int, default=3, help="MTP modules")
    train.add_argument("--mtp-weight", type=float, default=0.3, help="weight of all modules' losses together")
    train.add_argument("--decay", type=float, default=0.4, help="share of the steps over which the rate falls to 0")
    train.add_argument("--state", type=Path, metavar="FILE", help="file to save progress in, and to resume from")
    train.set_defaults(run=_train)

    distil = commands.add_parser("distil", help="train the modules of a checkpoint towards its main model, frozen")
    distil.add_argument("--out", type=Path, required=True, help="checkpoint to write")
    distil.add_argument("--steps", type=int, help="default: as the shipped checkpoint")
    distil.add_argument("--seed", type=int, help="default: as the shipped checkpoint")
    distil.add_argument("--device", default="cpu")
    distil.set_defaults(run=_distil)

    export = commands.add_parser("export", help="write the model in Hugging Face's format")
    export.add_argument("--hf", type=Path, required=True, metavar="FOLDER")
    export.set_defaults(run=_export)

    for command in (generate, bench, train, distil):
        add_threads(command)
    for command in (generate, bench):
        command.add_argument("--max-new-tokens", type=int, default=128)
        command.add_argument("--top-k", type=int)
        command.add_argument("--top-p", type=float)
        command.add_argument("--seed", type=int, default=0)
    for command in (generate, bench, distil, export, *add_commands(commands)):
        command.add_argument("--checkpoint", type=Path, help="safetensors file (default: the one in the repository)")
    add_remote_options(bench)
    add_serve_command(commands)
    add_pack_command(commands)
    return parser


def _load(arguments, device: str = "cpu"):
    from .checkpoint import DEFAULT_CHECKPOINT, load

    return load(arguments.checkpoint or DEFAULT_CHECKPOINT, device)


def _sampling(arguments):
    from .sampling import Sampling

    return Sampling(arguments.temperature, arguments.top_k, arguments.top_p)


def _generate(arguments) -> int:
    import torch

    from . import NativeMTP, decode, decode_text, encode
    from .data import check_ascii

    check_numbers(arguments)
    check_ascii(arguments.prompt, "--prompt")
    use_threads(arguments)
    model = _load(arguments)
    proposer = NativeMTP(model, arguments.k, recycle=True) if arguments.k else None
    run = decode(
        model,
        encode(arguments.prompt),
        proposer,
        max_new_tokens=arguments.max_new_tokens,
        sampling=_sampling(arguments),
        generator=torch.Generator().manual_seed(arguments.seed),
    )
    print(arguments.prompt + decode_text(run.tokens[0]))
    print(
        f"{len(run.tokens[0])} tokens in {len(run.rounds)} rounds, mean acceptance length "
        f"{run.mean_acceptance_length:.2f}, {1e3 * run.tpot():.2f} ms a token",
        file=sys.stderr,
    )
    return 0


def _bench(arguments) -> int:
    if arguments.server or arguments.baseline:
        from .remote.command import bench_servers

        return bench_servers(arguments)
    check_numbers(arguments)
    _check_bench(arguments)
    use_threads(arguments)
    from .measure import compare, forward_cost, weight_bytes
    from .memory import drafter_memory
    from .prompts import load_prompts
    from .report import as_json, cost_line, header_line, table

    model = _load(arguments)
    sampling = _sampling(arguments)
    prompts = [prompt.ids for prompt in load_prompts(arguments.kind, arguments.prompts)]
    named = _routes(arguments, model)
    routes = [route for route, _ in named]
    results = compare(
        model, prompts, routes, max_new_tokens=arguments.max_new_tokens, sampling=sampling, batch=arguments.batch,
        repeats=arguments.repeats, seed=arguments.seed, on_progress=_progress,
    )  # fmt: skip
    costs = forward_cost(model, range(1, max(route.k for route in routes) + 2))
    work = f"{len(prompts)} {arguments.kind} prompts, {arguments.max_new_tokens} new tokens"
    print(header_line(work, sampling, arguments.batch, arguments.threads, weight_bytes(model)))
    memory = {route.name: drafter_memory(name, route.proposer, model) for route, name in named[1:]}
    print(table(results, memory))
    print(cost_line(costs))
    report = as_json(results, costs, weight_bytes(model), vars(arguments), memory)
    if arguments.hf:
        from .hf_bench import time_hf

        report["transformers"] = rows = time_hf(model, prompts, arguments.max_new_tokens)
        print("greedy, CPU ms a token: " + ", ".join(f"{name} {1e3 * value:.2f}" for name, value in rows.items()))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    from .plots import plot_comparison

    title = f"{arguments.kind} prompts, temperature {arguments.temperature:g}, batch {arguments.batch}"
    plot_comparison(results, title).savefig(arguments.png)
    print(f"figure: {arguments.png}")
    broken = [d for result in results for d in result.differences or [] if not d.is_rounding]
    return 1 if broken else 0


def _check_bench(arguments) -> None:
    """Raise ValueError or ImportError for what would fail only after everything has been measured."""
    from importlib.util import find_spec

    import matplotlib

    from .remote.command import check_no_remote_options

    check_no_remote_options(arguments)
    if arguments.max_new_tokens < 2:
        raise ValueError("--max-new-tokens must be at least 2: the first token is prefill, which is not measured")
    matplotlib.use("Agg")
    if arguments.png.suffix.lower() not in FIGURES:
        raise ValueError(f"--png {arguments.png}: the name of a figure ends in {', '.join(FIGURES)}")
    if arguments.hf and find_spec("transformers") is None:
        raise ImportError("--hf needs transformers: pip install 'transformers>=5.15'")
    check_output(arguments.png, "--png")
    if arguments.json:
        check_output(arguments.json, "--json")


def _routes(arguments, model) -> list:
    """What `bench` compares: (Route, its name in mtp.routes), the baseline first."""
    from .drafters import NativeMTP
    from .measure import Route, measured_scheduler
    from .routes import load_drafter

    ks = sorted(set(arguments.k) - {0})
    named = [(Route("k=0"), ""), *((Route(f"k={k}", NativeMTP(model, k, recycle=True), k), "native") for k in ks)]
    for name in dict.fromkeys(arguments.routes):
        drafter = load_drafter(name, model)
        named.append((Route(name, drafter, drafter.k), name))
    if arguments.schedule is not None:
        if "dspark" not in arguments.routes:
            raise ValueError("--schedule is for DSpark: add --routes dspark")
        budget = None if arguments.schedule is False else arguments.schedule
        drafter = load_drafter("dspark", model, scheduler=measured_scheduler(model, arguments.batch, budget))
        named.append((Route("dspark+sched", drafter, drafter.k), "dspark"))
    return named


def _train(arguments) -> int:
    check_numbers(arguments)
    use_threads(arguments)
    check_device(arguments.device)
    check_output(arguments.out, "--out")
    if arguments.state:
        check_output(arguments.state, "--state")
    from .checkpoint import save
    from .data import load_split
    from .model import ModelConfig
    from .training import TrainSettings, evaluate, train, training_record

    settings = TrainSettings(
        steps=arguments.steps, seed=arguments.seed, mtp_weight=arguments.mtp_weight, decay=arguments.decay
    )
    config = ModelConfig(n_layers=arguments.layers, n_mtp=arguments.modules)
    text, held_out = load_split()

    def show(report):
        bits = " ".join(f"{value:.3f}" for value in report.bits)
        line = f"step {report.step}/{report.steps}  bits a byte: {bits}  {report.seconds:.0f} s"
        show_progress(line, report.step, report.steps, every=20)

    model = train(config, settings, text=text, device=arguments.device, state=arguments.state, on_step=show)
    bits = evaluate(model, held_out, windows=256)
    save(model, arguments.out, training_record(settings, bits))
    print(f"{arguments.out}: held-out bits a byte " + ", ".join(f"{value:.3f}" for value in bits))
    return 0


def _distil(arguments) -> int:
    check_numbers(arguments)
    use_threads(arguments)
    check_device(arguments.device)
    check_output(arguments.out, "--out")
    from dataclasses import asdict

    from .checkpoint import DEFAULT_CHECKPOINT, read_metadata, save
    from .data import load_split
    from .distillation import DistillSettings, acceptance_rates, distil

    model = _load(arguments, arguments.device)
    _, record = read_metadata(arguments.checkpoint or DEFAULT_CHECKPOINT)
    given = {name: getattr(arguments, name) for name in ("steps", "seed") if getattr(arguments, name) is not None}
    settings = DistillSettings(**given)
    text, held_out = load_split()
    before = acceptance_rates(model, held_out)
    distil(model, text, settings, on_step=show_step)
    after = acceptance_rates(model, held_out)
    distilled = {"settings": asdict(settings), "held_out_acceptance": [round(value, 4) for value in after]}
    save(model, arguments.out, record | {"distilled": distilled})
    rates = "  ".join(f"{old:.3f} -> {new:.3f}" for old, new in zip(before, after, strict=True))
    print(f"{arguments.out}: held-out acceptance by module at temperature 1: {rates}")
    return 0


def _export(arguments) -> int:
    check_output(arguments.hf / "model.safetensors", "--hf")
    from .export_hf import export_hf

    print(f"written: {export_hf(_load(arguments), arguments.hf)}")
    return 0


def _progress(done: int, total: int) -> None:
    show_progress(f"{done}/{total} runs", done, total)
