"""`python -m mtp serve`: the command line of the server. Nothing heavy is imported before it runs."""

from __future__ import annotations

import argparse
import os
import socket
import sys
from pathlib import Path

from ..options import add_threads, check_numbers, use_threads

API_KEY_VARIABLE = "MTP_API_KEY"


def add_serve_command(commands) -> None:
    """Add `serve` to the subparsers of `python -m mtp`."""
    serve = commands.add_parser("serve", help="an OpenAI-compatible HTTP server over the model")
    serve.add_argument("--k", type=int, default=3, help="drafts a round, 0 for plain autoregression (the baseline)")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    serve.add_argument("--port", type=int, default=8000, help="0 takes a free one")
    serve.add_argument("--name", default="mtp", help="model name in the API")
    serve.add_argument("--max-batch", type=int, default=8, help="greedy requests decoded together")
    add_threads(serve)
    serve.add_argument("--checkpoint", type=Path, help="safetensors file (default: the one in the repository)")
    serve.epilog = f"With {API_KEY_VARIABLE} in the environment, requests need it as a bearer token."
    serve.set_defaults(run=serve_command)


def serve_command(arguments: argparse.Namespace) -> int:
    """Serve until interrupted. Returns 0, or 2 where the port cannot be had."""
    check_numbers(arguments)
    use_threads(arguments)
    import uvicorn

    from ..checkpoint import DEFAULT_CHECKPOINT, load
    from .app import build_app

    app = build_app(
        load(arguments.checkpoint or DEFAULT_CHECKPOINT), k=arguments.k, name=arguments.name,
        max_batch=arguments.max_batch, api_key=os.environ.get(API_KEY_VARIABLE),
    )  # fmt: skip
    try:
        listener = socket.create_server((arguments.host, arguments.port))
    except OSError as error:
        print(f"error: cannot listen on {arguments.host}:{arguments.port}: {error.strerror}", file=sys.stderr)
        return 2
    host, port = listener.getsockname()[:2]
    drafting = f"{arguments.k} drafts a round" if arguments.k else "no drafts: the baseline"
    print(f"http://{host}:{port} serves {arguments.name!r}, {drafting}; Ctrl-C ends it", file=sys.stderr, flush=True)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=5))
    server.run(sockets=[listener])
    return 0
