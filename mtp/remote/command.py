"""`python -m mtp bench --server URL [--baseline URL]`. Nothing heavy is imported before it runs."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from pathlib import Path

from ..options import check_numbers, check_output, said

LOCAL_ONLY = ("k", "routes", "schedule", "hf", "threads", "checkpoint", "png")
"""Options of `bench` that belong to the local model: with --server they would do nothing."""

REMOTE_ONLY = ("model", "chat", "prompt_file", "ignore_eos", "timeout", "warmup")
"""Options that do nothing without --server."""


def add_remote_options(bench: argparse.ArgumentParser) -> None:
    """Add what a benchmark of running servers needs to the parser of `bench`, after the options of its own."""
    remote = bench.add_argument_group(
        "running servers",
        "Measure OpenAI-compatible servers (vLLM, SGLang, llama.cpp, `python -m mtp serve`), not the local model. "
        "--batch is the number of requests in flight. Key: environment variable OPENAI_API_KEY. Exit status: 0 fine, "
        "1 something wants attention (MTP not on, failed requests, other outputs), 2 nothing could be measured.",
    )  # fmt: skip
    remote.add_argument("--server", metavar="URL", help="the server with MTP, like http://localhost:8000")
    remote.add_argument("--baseline", metavar="URL", help="the same model's server without MTP")
    remote.add_argument("--model", help="model name (default: the first that each server lists)")
    remote.add_argument("--chat", action="store_true", help="use /v1/chat/completions, the prompt as a user's message")
    remote.add_argument("--prompt-file", type=Path, metavar="FILE", help='own prompts: a {"text": …} a line')
    remote.add_argument("--ignore-eos", action="store_true", help="go on after the end of text, to equal lengths")
    remote.add_argument("--timeout", type=float, default=120.0, help="seconds that a request may take in all")
    remote.add_argument("--warmup", type=int, help="uncounted requests to each server first (default: 2, or --batch)")
    bench.set_defaults(
        local_defaults={name: bench.get_default(name) for name in LOCAL_ONLY},
        remote_defaults={name: bench.get_default(name) for name in REMOTE_ONLY},
    )


def check_no_remote_options(arguments: argparse.Namespace) -> None:
    """Raise ValueError for an option that does nothing without --server."""
    for name, default in arguments.remote_defaults.items():
        if getattr(arguments, name) != default:
            raise ValueError(f"--{name.replace('_', '-')} belongs to a running server: name it by --server URL")


def bench_servers(arguments: argparse.Namespace) -> int:
    """Measure and print. Returns 0, 1 where the report has findings, 2 where nothing could be measured."""
    from .client import Fault

    try:
        return asyncio.run(_bench(arguments))
    except (Fault, ValueError, OSError) as error:
        print(f"error: {said(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


async def _bench(arguments: argparse.Namespace) -> int:
    from .client import Client, RequestSettings
    from .equality import output_differences, with_margins
    from .measure import Side, measure
    from .report import as_json, build_report, table

    _check(arguments)
    prompts, warmup = _prompts(arguments)
    if arguments.json:
        check_output(arguments.json, "--json")
    wanted = RequestSettings(
        arguments.max_new_tokens, arguments.temperature, arguments.seed, arguments.top_k, arguments.top_p,
        arguments.ignore_eos, arguments.chat,
    )  # fmt: skip
    urls = {"server": arguments.server, "baseline": arguments.baseline}
    clients = {name: Client(url, arguments.timeout) for name, url in urls.items() if url}
    if len({client.url for client in clients.values()}) < len(clients):
        raise ValueError("--server and --baseline are the same address: start the model twice, with MTP and without")
    try:
        sides = [
            Side(name, client, arguments.model or await client.model_name()) for name, client in clients.items()
        ]  # fmt: skip
        await measure(
            sides, prompts, wanted, concurrency=arguments.batch, repeats=arguments.repeats, warmup=warmup,
            on_progress=_progress,
        )  # fmt: skip
        compared, differences = 0, []
        if len(sides) == 2 and wanted.temperature == 0:
            compared, differences = output_differences(*sides)
            differences = await with_margins(differences, sides[1], prompts, wanted)
    finally:
        for client in clients.values():
            await client.close()
    report = build_report(sides, wanted, compared, differences)
    print(
        f"{len(prompts)} prompts ({arguments.prompt_file or arguments.kind}) to {wanted.path}, "
        f"{wanted.max_tokens} new tokens, temperature {wanted.temperature:g}, {arguments.batch} in flight, "
        f"{len(warmup)} warm-up requests; times in ms, TPOT by token counts"
    )
    print(table(report))
    if arguments.json:
        settings = {
            key: value for key, value in vars(arguments).items()
            if isinstance(value, (int, float, str)) and key not in LOCAL_ONLY
        }  # fmt: skip
        text = json.dumps(as_json(report, settings), indent=2, ensure_ascii=False)
        arguments.json.write_text(text + "\n", encoding="utf-8")
    if not sides[0].replies:
        print("error: the server completed no request", file=sys.stderr)
        return 2
    return 1 if report.findings else 0


def _check(arguments: argparse.Namespace) -> None:
    if not arguments.server:
        raise ValueError("--baseline compares with --server: name the server with MTP by --server URL")
    for name, default in arguments.local_defaults.items():
        if getattr(arguments, name) != default:
            raise ValueError(f"--{name} belongs to the local model; with --server it would do nothing")
    check_numbers(arguments)
    if not arguments.timeout > 0:
        raise ValueError(f"--timeout must be a positive number of seconds, got {arguments.timeout}")
    if not 0 <= arguments.temperature < float("inf"):
        raise ValueError(f"--temperature must be 0 (greedy) or a positive number, got {arguments.temperature}")


def _prompts(arguments: argparse.Namespace) -> tuple[list[str], list[str]]:
    """The prompts to measure and those for the warm-up: others, as far as there are any."""
    from ..prompts import load_prompts

    if arguments.prompt_file:
        texts = _read_prompts(arguments.prompt_file)
    else:
        texts = [prompt.text for prompt in load_prompts(arguments.kind)]
        if arguments.prompts > len(texts):
            raise ValueError(f"--prompts {arguments.prompts}: there are only {len(texts)} {arguments.kind} prompts")
    measured = texts[: arguments.prompts]
    others = texts[arguments.prompts :] or measured
    warmup = max(2, arguments.batch) if arguments.warmup is None else arguments.warmup
    return measured, [others[number % len(others)] for number in range(warmup)]


def _read_prompts(path: Path) -> list[str]:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: byte {error.start + 1} is not UTF-8 text ({error.reason}): save it as UTF-8"
        ) from error
    texts = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            texts.append(json.loads(line)["text"])
            if not isinstance(texts[-1], str) or not texts[-1]:
                raise ValueError("the text is empty or no string")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f'{path}:{number}: want {{"text": "…"}}, got {line[:60]!r} ({error})') from error
    if not texts:
        raise ValueError(f"{path}: no prompts in it")
    return texts


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done}/{total} requests", end="\n" if done == total else "", file=sys.stderr, flush=True)
