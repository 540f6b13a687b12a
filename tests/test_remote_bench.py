"""The benchmark of servers end to end: fair turns, faults that cost only their request, the report's conclusions."""

import asyncio
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from running_server import serving, tiny_model
from scripted_server import DONE, Answer, ScriptedServer, chunk, good, usage

from mtp import cli, save
from mtp.remote import measure as measuring
from mtp.remote.client import Client, Fault, Reply, RequestSettings
from mtp.remote.equality import output_differences, with_margins
from mtp.remote.measure import Side, measure
from mtp.remote.report import build_report, table

ROOT = Path(__file__).parents[1]
GREEDY = RequestSettings(max_tokens=4, temperature=0.0, seed=0)
PROMPTS = ["p0", "p1", "p2", "p3"]


@pytest.fixture(autouse=True)
def quick_reading_of_counters(monkeypatch):
    monkeypatch.setattr(measuring, "SETTLE_SECONDS", 0.01)


def bench(*urls: str, prompts=PROMPTS, wanted=GREEDY, timeout=20.0, **options):
    """Measure one or two servers; gives (report, sides)."""

    async def go():
        sides = [Side(name, Client(url, timeout), "m") for name, url in zip(("server", "baseline"), urls, strict=False)]
        await measure(sides, prompts, wanted, **options)
        compared, found = 0, []
        if len(sides) == 2:
            compared, found = output_differences(*sides)
            found = await with_margins(found, sides[1], prompts, wanted)
        for side in sides:
            await side.client.close()
        return build_report(sides, wanted, compared, found), sides

    return asyncio.run(go())


def counting(server_name: str, log: list):
    def script(number: int, body: dict) -> Answer:
        log.append((server_name, body["prompt"]))
        return good()

    return script


def test_the_servers_take_turns_and_each_goes_first_as_often():
    log: list = []
    with ScriptedServer(counting("s", log)) as server, ScriptedServer(counting("b", log)) as base:
        bench(server.url, base.url, warmup=["w"], repeats=2)
    assert log[:2] == [("s", "w"), ("b", "w")]
    order = "sbbssbbs" + "bssbbssb"  # the second repeat begins with the other one
    assert "".join(name for name, _ in log[2:]) == order
    assert [prompt for _, prompt in log[2::2]] == PROMPTS * 2


def test_as_many_requests_are_in_flight_as_asked_for():
    together = threading.Barrier(3, timeout=10)  # every request waits here for two others
    with ScriptedServer(lambda number, body: good()) as server:
        original = server._completion

        async def wait_for_others(writer, answer):
            await asyncio.to_thread(together.wait)
            await original(writer, answer)

        server._completion = wait_for_others
        report, sides = bench(server.url, prompts=["p"] * 6, concurrency=3)
        assert server.most_at_once == 3
    assert len(sides[0].replies) == 6


def test_a_fault_costs_its_request_only_and_is_counted_by_name():
    script = [
        good(), Answer([b'{"error": {"message": "no memory"}}'], 500), Answer([chunk("a")], end="cut"),
        Answer([chunk("a"), DONE]), good(), Answer([chunk("a")], end="silence"), good(),
    ]  # fmt: skip
    with ScriptedServer(lambda number, body: script[number]) as server:
        report, (side,) = bench(server.url, prompts=["p"] * 7, timeout=1.0)
    kinds = [run.kind if isinstance(run, Fault) else "ok" for (run,) in side.results]
    assert kinds == ["ok", "HTTP 500", "cut stream", "no usage", "ok", "timeout", "ok"]
    (finding,) = [finding for finding in report.findings if "failed" in finding]
    assert "4 of 7 requests failed" in finding and "1 timeout" in finding
    assert any("no memory" in note for note in report.notes)


def test_a_server_that_falls_silent_is_not_asked_for_ever():
    with (
        ScriptedServer(lambda number, body: Answer([chunk("a")], end="silence") if number else good()) as server,
        ScriptedServer(lambda number, body: good()) as alive,
    ):
        report, (side, base) = bench(server.url, alive.url, prompts=["p"] * 8, timeout=0.5)
    kinds = [run.kind if isinstance(run, Fault) else "ok" for (run,) in side.results]
    assert kinds == ["ok"] + ["timeout"] * 3 + ["not sent"] * 4
    assert len(base.replies) == 8
    assert report.speedup is not None  # from the one prompt that both completed


def test_outputs_that_differ_are_counted_with_place_and_margin():
    def with_logprobs(text: str, second: float):
        def script(number: int, body: dict) -> Answer:
            if "logprobs" not in body:
                return Answer([chunk(text), usage(len(text)), DONE])
            top = [{letter: -0.1, "?": -0.1 - second} for letter in text]
            logprobs = {"tokens": list(text), "top_logprobs": top}
            choice = {"text": text, "logprobs": logprobs}
            return Answer([json.dumps({"choices": [choice]}).encode()], end="clean")

        return script

    def compare(second: float):
        with (
            ScriptedServer(lambda number, body: good("abXd" if number else "abcd")) as server,
            ScriptedServer(with_logprobs("abcd", second)) as base,
        ):
            return bench(server.url, base.url, prompts=PROMPTS[:2])[0]

    report = compare(0.05)
    (found,) = report.differences
    assert (report.compared, found.prompt, found.position, found.baseline, found.server) == (2, 1, 2, "cd", "Xd")
    assert found.margin == pytest.approx(0.05) and found.is_rounding
    assert not any("outputs differ" in finding for finding in report.findings)
    assert "1 of 2 equal" in table(report) and "rounding" in table(report)
    report = compare(2.0)
    assert any("1 of 2 outputs differ" in finding for finding in report.findings)
    assert "a defect" in table(report)


@pytest.mark.parametrize(
    ("again", "remark"),
    [
        (Answer([b'{"error": "logprobs off"}'], 400), "logprobs off"),
        (Answer([b'{"choices": [{"text": "abcd", "logprobs": null}]}']), "no log probabilities"),
        (
            Answer([b'{"choices": [{"logprobs": {"tokens": ["z"], "top_logprobs": [{"z": 0, "y": -1}]}}]}']),
            "not reproducible",
        ),
        (
            Answer([b'{"choices": [{"logprobs": {"tokens": ["abcd"], "top_logprobs": [{"abcd": 0}]}}]}']),
            "the baseline ends there",
        ),
    ],
)
def test_a_difference_without_a_margin_stays_unexplained(again, remark):
    def base_script(number: int, body: dict) -> Answer:
        return again if "logprobs" in body else Answer([chunk("abcd"), usage(4), DONE])

    with (
        ScriptedServer(lambda number, body: Answer([chunk("abcd!"), usage(5), DONE])) as server,
        ScriptedServer(base_script) as base,
    ):
        report, _ = bench(server.url, base.url, prompts=["p"])
    (found,) = report.differences
    assert found.margin is None and remark in found.remark
    assert report.findings  # not called rounding


def page(drafts: int, generated: int) -> str:
    return (
        f"vllm:spec_decode_num_drafts_total {drafts}\nvllm:spec_decode_num_draft_tokens_total {drafts}\n"
        f"vllm:spec_decode_num_accepted_tokens_total {drafts}\nvllm:generation_tokens_total {generated}\n"
    )


def test_what_the_counters_mean_for_the_report():
    def running(drafting: bool, foreign: int = 0):
        server = ScriptedServer(lambda number, body: good())
        server.metrics = lambda: page(drafting * server.completions, (4 + foreign) * server.completions)
        return server

    with running(False) as server, running(False) as base:
        assert any("MTP was not on" in f for f in bench(server.url, base.url)[0].findings)
    with running(True) as server, running(True) as base:
        (finding,) = bench(server.url, base.url)[0].findings
        assert "it is no baseline" in finding
    with running(True, foreign=9) as server, running(False) as base:
        report, _ = bench(server.url, base.url)
        assert report.findings == []
        assert any("others used it" in note for note in report.notes)
    with ScriptedServer(lambda number, body: good(), metrics=None) as server:
        report, (side,) = bench(server.url)
        assert report.findings == []  # the times are sound
        assert any("HTTP 404" in note and "--enable-metrics" in note for note in report.notes)
        assert side.speculation.mean_acceptance_length is None


def test_counters_that_lag_behind_are_waited_for():
    reads = iter([0, 0, 3, 7, 7, 9, 9, 9])  # before: stands at 0; after: still rising, then 7
    with ScriptedServer(lambda number, body: good(), metrics=lambda: page(next(reads), 4)) as server:
        _, (side,) = bench(server.url, prompts=["p"])
    assert side.speculation.drafts == 7


def test_a_server_process_that_dies_is_reported_and_the_rest_goes_on(tmp_path):
    save(tiny_model(), tmp_path / "tiny.safetensors")
    command = [sys.executable, "-m", "mtp", "serve", "--port", "0", "--k", "2", "--name", "m"]
    process = subprocess.Popen(
        [*command, "--checkpoint", str(tmp_path / "tiny.safetensors")], stderr=subprocess.PIPE, text=True, cwd=ROOT
    )  # fmt: skip
    try:
        url, _, said = process.stderr.readline().partition(" ")
        assert "2 drafts a round" in said

        def kill_after_two(done: int, total: int) -> None:
            if done == 2:
                process.kill()
                process.wait()

        with ScriptedServer(lambda number, body: good()) as base:
            report, (side, other) = bench(
                url, base.url, prompts=["p"] * 5, on_progress=kill_after_two, wanted=GREEDY
            )  # fmt: skip
    finally:
        process.kill()
        process.communicate()
    assert [getattr(run, "kind", "ok") for (run,) in side.results] == ["ok"] + ["unreachable"] * 3 + ["not sent"]
    assert len(other.replies) == 5
    assert side.speculation.status == "unknown" and "unreachable" in side.speculation.reason


def test_a_port_that_is_taken_is_said(capsys, tmp_path):
    save(tiny_model(), tmp_path / "tiny.safetensors")
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = str(held.getsockname()[1])
        assert cli.main(["serve", "--port", port, "--checkpoint", str(tmp_path / "tiny.safetensors")]) == 2
    assert f"cannot listen on 127.0.0.1:{port}" in capsys.readouterr().err


# The command ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def servers():
    model = tiny_model()
    with serving(model, k=2) as server, serving(model, k=0) as baseline:
        yield server, baseline


def test_the_command_measures_real_servers(servers, capsys, tmp_path):
    out = tmp_path / "run.json"
    options = ["--prompts", "3", "--kind", "prose", "--max-new-tokens", "12", "--temperature", "0", "--batch", "2"]
    status = cli.main(["bench", "--server", servers[0], "--baseline", servers[1] + "/v1", *options, "--json", str(out)])
    printed = capsys.readouterr().out
    run = json.loads(out.read_text(encoding="utf-8"))
    server, baseline = run["sides"]
    assert (server["completed"], server["failed"], server["output_tokens"]) == (3, 0, 36)
    assert server["speculation"]["generated"] == baseline["speculation"]["generated"] == 36  # warm-up not counted
    assert server["speculation"]["status"] == "on" and baseline["speculation"]["status"] == "off"
    assert run["outputs_compared"] == 3 and run["outputs_different"] == []
    assert "3 of 3 equal to the baseline's" in printed
    assert run["speedup"] > 0 and server["tpot_p50"] <= server["tpot_p95"]
    # An untrained model's drafts all fail at temperature 0, and the command says so.
    (finding,) = run["findings"]
    assert "nothing was accepted" in finding and status == 1


def test_the_command_says_fine_and_says_mtp_was_off(servers, capsys):
    options = ["--prompts", "2", "--kind", "prose", "--max-new-tokens", "24", "--seed", "3", "--chat"]
    assert cli.main(["bench", "--server", servers[0], "--baseline", servers[1], *options]) == 0
    assert "/v1/chat/completions" in capsys.readouterr().out
    assert cli.main(["bench", "--server", servers[1], *options]) == 1
    printed = capsys.readouterr().out
    assert "MTP was not on" in printed and "no --baseline" in printed


def test_own_prompts(servers, tmp_path, capsys):
    own = tmp_path / "prompts.jsonl"
    own.write_text('{"text": "abc"}\n\n{"text": "一二"}\n', encoding="utf-8")
    assert cli.main(["bench", "--server", servers[0], "--prompt-file", str(own), "--max-new-tokens", "24"]) == 0
    assert "2 prompts" in capsys.readouterr().out
    own.write_text('{"text": "abc"}\n{"prompt": "x"}\n', encoding="utf-8")
    assert cli.main(["bench", "--server", servers[0], "--prompt-file", str(own)]) == 2
    assert f"{own}:2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--baseline", "http://127.0.0.1:1"], "--server URL"),
        (["--server", "127.0.0.1:1", "--baseline", "http://127.0.0.1:1/v1/"], "same address"),
        (["--server", "http://127.0.0.1:9"], "unreachable"),
        (["--server", "ftp://x"], "http://localhost:8000"),
        (["--server", "http://127.0.0.1:9", "--k", "3"], "--k belongs to the local model"),
        (["--server", "http://127.0.0.1:9", "--prompts", "100000"], "there are only"),
        (["--server", "http://127.0.0.1:9", "--batch", "0"], "--batch must be at least 1"),
        (["--server", "http://127.0.0.1:9", "--temperature", "-1"], "--temperature"),
        (["--server", "http://127.0.0.1:9", "--timeout", "0"], "--timeout"),
        (["--server", "http://127.0.0.1:9", "--prompt-file", "/nowhere.jsonl"], "/nowhere.jsonl"),
    ],
)
def test_wrong_use_is_told_and_gives_2(options, said, capsys):
    assert cli.main(["bench", *options]) == 2
    assert said in capsys.readouterr().err


def test_a_server_that_completes_nothing_gives_2(capsys):
    with ScriptedServer(lambda number, body: Answer([b'{"error": "no"}'], 400)) as server:
        assert cli.main(["bench", "--server", server.url, "--prompts", "2"]) == 2
    printed = capsys.readouterr()
    assert "completed no request" in printed.err
    assert "2 of 2 requests failed (2 HTTP 400)" in printed.out


def test_a_replys_numbers_reach_the_table():
    with ScriptedServer(lambda number, body: good()) as server:
        report, (side,) = bench(server.url)
    side.results = [[Reply("ab", 11, 1, "length", 0.0, 1.0, 3.0, 2)]]
    side.seconds = 5.5
    line = next(line for line in table(report).splitlines() if line.startswith("server"))
    assert line.split()[:8] == ["server", "1", "0", "1000.00", "1000.00", "200.00", "200.00", "2.00"]
