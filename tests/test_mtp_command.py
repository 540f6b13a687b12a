"""The command line: what is wrong is told in one line and before the work, threads are few, what is printed reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from running_server import tiny_model

from mtp import Sampling, cli, save
from mtp.cli import main, parser
from mtp.data import check_ascii
from mtp.options import check_output
from mtp.report import header_line

NOWHERE = "http://127.0.0.1:9"


class WorkBegan(Exception):
    """What stands in for the work of a command raises it."""


@pytest.fixture
def no_work(monkeypatch):
    """No command gets as far as its work: reading the text to train on, decoding, loading a model, packing."""

    def begin(*_, **__):
        raise WorkBegan

    for home in ("data.load_split", "measure.compare", "checkpoint.load", "packing.pack", "remote.measure.measure"):
        monkeypatch.setattr(f"mtp.{home}", begin)


def refused(arguments: list, capsys, status: int = 1) -> str:
    """Run a command that is to be refused; its one line."""
    assert main([str(argument) for argument in arguments]) == status
    error = capsys.readouterr().err
    assert error.startswith("error: ") and error.count("\n") == 1, error
    return error


# Threads --------------------------------------------------------------------------------------------------------------

COMMANDS = {
    "generate": ["--prompt", "x"],
    "bench": [],
    "train": ["--out", "x"],
    "distil": ["--out", "x"],
    "train-drafter": ["--route", "eagle", "--out", "x"],
    "serve": [],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_one_thread_unless_asked_for_more(command, monkeypatch, no_work, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    counts = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    for more in ([], ["--threads", "3"]):
        with pytest.raises(WorkBegan):
            main([command, *COMMANDS[command], *more])
    assert counts == [1, 3]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_number_of_threads_that_cannot_be_is_refused(command, capsys, no_work):
    for count in (0, 10**6):
        error = refused([command, *COMMANDS[command], "--threads", count], capsys)
        assert "--threads must be from 1 to" in error and "cores" in error


# Numbers and names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "--prompt", "x", "--k", "-1"], "--k must be from 0 to 64, got -1"),
        (["bench", "--k", "1", "-1"], "--k must be from 0 to 64, got -1"),
        (["serve", "--k", "65"], "--k must be from 0 to 64, got 65"),
        (["serve", "--port", "99999"], "--port must be from 0 to 65535, got 99999"),
        (["serve", "--max-batch", "0"], "--max-batch must be at least 1"),
        (["generate", "--prompt", "x", "--max-new-tokens", "0"], "--max-new-tokens must be at least 1"),
        (["generate", "--prompt", "x", "--seed", str(10**20)], "--seed must be from 0 to"),
        (["bench", "--max-new-tokens", "1"], "--max-new-tokens must be at least 2"),
        (["bench", "--prompts", "0"], "--prompts must be at least 1"),
        (["bench", "--batch", "0"], "--batch must be at least 1"),
        (["bench", "--repeats", "0"], "--repeats must be at least 1"),
        (["bench", "--prompt-file", "x"], "--prompt-file belongs to a running server"),
        (["bench", "--png", "x.xyz"], "--png x.xyz: the name of a figure ends in .png"),
        (["train", "--out", "x", "--steps", "0"], "--steps must be at least 1"),
        (["train", "--out", "x", "--layers", "0"], "--layers must be at least 1"),
        (["train", "--out", "x", "--modules", "-1"], "--modules must be at least 0"),
        (["train", "--out", "x", "--device", "nonsense"], "--device nonsense cannot be used here"),
        (["train", "--out", "x", "--device", "meta"], "--device meta cannot be used here"),
        (["distil", "--out", "x", "--device", "cuda:77"], "--device cuda:77 cannot be used here"),
        (["train-drafter", "--route", "eagle", "--length", "0"], "--length must be at least 1"),
        (["train-drafter", "--route", "eagle", "--batch", "0"], "--batch must be at least 1"),
    ],
)
def test_wrong_options_are_named_before_the_work(arguments, message, capsys, no_work):
    assert message in refused(arguments, capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--routes", "eagle"], "--routes belongs to the local model"),
        (["--schedule"], "--schedule belongs to the local model"),
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--server", "http://127.0.0.1:99999"], "Port out of range"),
    ],
)
def test_wrong_options_are_named_for_servers_too(options, message, capsys):
    assert message in refused(["bench", "--server", NOWHERE, *options], capsys, 2)


def test_a_key_that_is_none_is_told_by_its_variable(capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "密钥")
    error = refused(["bench", "--server", NOWHERE], capsys, 2)
    assert "OPENAI_API_KEY" in error and "密钥" not in error


def test_missing_transformers_are_told_before_the_work(capsys, monkeypatch, no_work):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install 'transformers>=5.15'" in refused(["bench", "--hf"], capsys)


def test_wrong_routes_are_named(capsys):
    assert "unknown route 'egale'; there are native" in refused(["bench", "--routes", "egale"], capsys)
    assert "unknown route 'egale'" in refused(["train-drafter", "--route", "egale"], capsys)
    assert "with what 'eagle' trains" in refused(["train-drafter", "--route", "eagle-tree"], capsys)


def test_a_window_too_short_for_eagle_is_told(capsys, tmp_path):
    save(tiny_model(), tmp_path / "tiny.safetensors")
    small = ["--checkpoint", tmp_path / "tiny.safetensors", "--out", tmp_path / "out", "--steps", "1", "--batch", "1"]
    error = refused(["train-drafter", "--route", "eagle", "--length", "3", *small], capsys)
    assert "3 tokens have no room for 3 unrolled steps: take 4 or more" in error


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\xff\xfe", ": byte 1 is not UTF-8 text"), (b"[" * 10**5, ":1: want"), (b"", ": no prompts in it")],
)
def test_a_damaged_file_of_prompts_is_told_by_name_and_place(content, message, capsys, tmp_path):
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    assert f"{path}{message}" in refused(["bench", "--server", NOWHERE, "--prompt-file", path], capsys, 2)
    assert f"{tmp_path}: Is a dir" in refused(["bench", "--server", NOWHERE, "--prompt-file", tmp_path], capsys, 2)


def test_prompts_may_hold_unicode_s_line_separators(tmp_path):
    from mtp.remote.command import _read_prompts

    path = tmp_path / "prompts.jsonl"
    path.write_text('{"text": "a\u2028b"}\n', encoding="utf-8")
    assert _read_prompts(path) == ["a\u2028b"]


# What fails while it runs ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (OSError(28, "No space left on device", "/full/x"), 1, "error: /full/x: No space left on device\n"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB\n…"), 1, "error: not enough memory, ask"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), 1, "error: not enough memory"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_what_fails_in_the_midst_is_one_line_too(error, status, message, capsys, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(cli, "_load", fail)
    assert main(["generate", "--prompt", "x"]) == status
    printed = capsys.readouterr().err
    assert printed.startswith(message) and printed.count("\n") == 1


def test_a_defect_is_not_hidden(monkeypatch):
    def fail(*_):
        raise RuntimeError("The size of tensor a (3) must match the size of tensor b (4)")

    monkeypatch.setattr(cli, "_load", fail)
    with pytest.raises(RuntimeError):
        main(["generate", "--prompt", "x"])


# Outputs --------------------------------------------------------------------------------------------------------------

OUTPUTS = {
    "bench --png": ["bench", "--png"],
    "bench --json": ["bench", "--json"],
    "train --out": ["train", "--out"],
    "train --state": ["train", "--out", "x", "--state"],
    "distil --out": ["distil", "--out"],
    "train-drafter --out": ["train-drafter", "--route", "eagle", "--out"],
    "export --hf": ["export", "--hf"],
    "pack --out": ["pack", "--out"],
    "bench --server --json": ["bench", "--server", NOWHERE, "--json"],
}


@pytest.fixture
def only_a_target(no_work, monkeypatch, tmp_path):
    """`train-drafter` loads its target before it knows its routes: let it have one."""
    monkeypatch.setattr("mtp.checkpoint.load", lambda *_, **__: tiny_model())
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("command", OUTPUTS)
def test_an_output_that_cannot_be_written_is_refused_before_the_work(command, only_a_target, capsys, tmp_path):
    *_, option = command.split()
    status = 2 if "--server" in command else 1
    (tmp_path / "file").write_text("")
    (tmp_path / "folder.png" / "model.safetensors").mkdir(parents=True)
    for place in ("/proc/x.png", tmp_path / "file" / "x.png", tmp_path / "folder.png"):
        error = refused([*OUTPUTS[command], place], capsys, status)
        assert f"{option} {place}" in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder.png"]


@pytest.mark.parametrize("command", OUTPUTS)
def test_an_output_that_can_be_written_is_not_made_before_the_work(command, only_a_target, tmp_path, monkeypatch):
    def begin(*_):
        raise WorkBegan

    monkeypatch.setattr("mtp.export_hf.export_hf", begin)
    monkeypatch.setattr("mtp.remote.client.Client.model_name", begin)
    monkeypatch.setattr("mtp.training.train", begin)
    with pytest.raises(WorkBegan):
        main([*OUTPUTS[command], str(tmp_path / "new" / "out.png")])
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_what_is_there_stays_and_what_is_no_file_is_refused(tmp_path):
    path = tmp_path / "kept"
    path.write_text("kept")
    check_output(path, "--out")
    assert path.read_text() == "kept"
    check_output(tmp_path / "a" / "b" / "new", "--out")
    assert list((tmp_path / "a" / "b").iterdir()) == []
    with pytest.raises(ValueError, match="--out /dev/null is no regular file"):
        check_output(Path("/dev/null"), "--out")
    with pytest.raises(ValueError, match="--json .* cannot be written .*too long"):
        check_output(tmp_path / ("x" * 300), "--json")


@pytest.mark.parametrize("content", [b"no state\n", b"", b"\x80\x02}q\x00.", b"PK\x03\x04 cut short", b"\xff" * 500])
def test_a_file_that_holds_no_state_is_told_and_kept(content, capsys, tmp_path):
    state = tmp_path / "state.pt"
    state.write_bytes(content)
    small = ["--layers", "1", "--modules", "0", "--steps", "1"]
    error = refused(["train", "--out", tmp_path / "x", "--state", state, *small], capsys)
    assert f"{state}: holds no training state" in error
    assert state.read_bytes() == content


def test_a_saved_object_that_is_no_state_is_told(capsys, tmp_path):
    torch.save({"step": 3}, tmp_path / "other.pt")
    arguments = ["train", "--out", tmp_path / "x", "--state", tmp_path / "other.pt", "--layers", "1", "--steps", "1"]
    assert "holds no training state" in refused(arguments, capsys)


# Texts ----------------------------------------------------------------------------------------------------------------


def test_a_prompt_beyond_ascii_is_refused(capsys, no_work):
    error = refused(["generate", "--prompt", "def 你好():"], capsys)
    assert "--prompt: character 5 is '你'" in error and "ASCII source text" in error
    check_ascii("def f():\n\treturn 1\x7f", "--prompt")


def test_the_header_of_a_benchmark_is_for_people():
    line = header_line("24 code prompts, 128 new tokens", Sampling(1.0), 1, 1, {"target": 7139712, "modules": 1554048})
    assert line == (
        "24 code prompts, 128 new tokens, temperature 1, top-k off, top-p off, batch 1, 1 thread; prefill apart; "
        "weights 6.8 MiB (target) + 1.5 MiB (modules), fp32"
    )
    assert "temperature 0 (greedy), batch 2, 2 threads" in header_line("", Sampling(0.0), 2, 2, {})
    assert "temperature 0.5, top-k 5, top-p 0.9," in header_line("", Sampling(0.5, 5, 0.9), 1, 1, {})


def test_all_commands_that_compute_have_threads():
    commands = parser()._subparsers._group_actions[0].choices
    with_threads = {name for name, each in commands.items() if "--threads" in each._option_string_actions}
    assert with_threads == set(COMMANDS)
