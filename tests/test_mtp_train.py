"""Training: learns, repeats from its seed, and goes on after an interruption as if there had been none."""

import json
from dataclasses import replace

import pytest
import torch
from mtp_reference import SMALL

from mtp import NativeMTP, TrainSettings, decode, load, read_metadata, train
from mtp.cli import main
from mtp.training import evaluate

TEXT = torch.tensor([1, 2, 3, 4, 5, 6, 7] * 200, dtype=torch.uint8)
SETTINGS = TrainSettings(steps=12, batch=4, length=24, warmup=3)


def weights(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def test_learns_a_cycle_and_its_modules_too():
    reports = []
    model = train(SMALL, replace(SETTINGS, steps=40), text=TEXT, on_step=reports.append)
    assert [report.step for report in reports] == list(range(1, 41))
    assert len(reports[0].bits) == 4
    assert all(last < 0.5 < first for first, last in zip(reports[0].bits, reports[-1].bits, strict=True))
    assert all(bits < 0.5 for bits in evaluate(model, TEXT, windows=8, length=24))
    run = decode(model.eval().fold(), [1, 2, 3, 4, 5, 6, 7, 1, 2, 3], NativeMTP(model), max_new_tokens=9)
    assert run.tokens == [[4, 5, 6, 7, 1, 2, 3, 4, 5]]
    assert run.mean_acceptance_length > 3


def test_same_seed_same_weights():
    one, again = (weights(train(SMALL, SETTINGS, text=TEXT)) for _ in range(2))
    other = weights(train(SMALL, replace(SETTINGS, seed=1), text=TEXT))
    assert all(torch.equal(one[name], again[name]) for name in one)
    assert not torch.equal(one["embedding"], other["embedding"])


def test_resuming_is_the_same_as_not_stopping(tmp_path):
    expected = weights(train(SMALL, SETTINGS, text=TEXT))

    class Stop(Exception):
        pass

    def stop(report):
        if report.step == 7:
            raise Stop

    with pytest.raises(Stop):
        train(SMALL, SETTINGS, text=TEXT, state=tmp_path / "state.pt", save_every=5, on_step=stop)
    steps = []
    model = train(
        SMALL, SETTINGS, text=TEXT, state=tmp_path / "state.pt", on_step=lambda report: steps.append(report.step)
    )
    assert steps == list(range(6, 13))
    for name, value in weights(model).items():
        assert torch.equal(value, expected[name]), name


def test_a_state_of_another_run_is_refused(tmp_path):
    train(SMALL, SETTINGS, text=TEXT, state=tmp_path / "state.pt")
    with pytest.raises(ValueError, match="another settings .seed."):
        train(SMALL, replace(SETTINGS, seed=1), text=TEXT, state=tmp_path / "state.pt")
    with pytest.raises(ValueError, match="another config .n_mtp."):
        train(replace(SMALL, n_mtp=1), SETTINGS, text=TEXT, state=tmp_path / "state.pt")


def test_rate_warms_up_stays_and_falls():
    rates = [replace(SETTINGS, steps=100, warmup=10, decay=0.4).rate(step) for step in range(100)]
    assert rates[:10] == pytest.approx([(i + 1) / 10 for i in range(10)])
    assert rates[10:61] == pytest.approx([1.0] * 51)
    assert rates[80] == pytest.approx(0.5)
    assert 0 < rates[99] < 0.03


@pytest.mark.parametrize(
    "settings, text, message",
    [
        ({"steps": 0}, TEXT, "steps"),
        ({"decay": 0.0}, TEXT, "decay"),
        ({"length": 5000}, TEXT, "a window needs 5004"),
    ],
)
def test_wrong_use(settings, text, message):
    with pytest.raises(ValueError, match=message):
        train(SMALL, replace(SETTINGS, **settings), text=text)


def test_a_loss_that_is_not_finite_stops_training():
    with pytest.raises(FloatingPointError, match="learning rates"):
        train(SMALL, replace(SETTINGS, adam_lr=float("inf")), text=TEXT)


def test_command_line(tmp_path, capsys):
    """train, then generate, distil, bench and export with what it wrote."""
    out = tmp_path / "tiny.safetensors"
    assert main(["train", "--out", str(out), "--steps", "2", "--layers", "1", "--modules", "1"]) == 0
    config, training = read_metadata(out)
    assert (config.n_layers, config.n_mtp, training["settings"]["steps"]) == (1, 1, 2)
    assert len(load(out).mtp) == 1
    checkpoint = ["--checkpoint", str(out)]
    assert main(["generate", "--prompt", "def ", "--max-new-tokens", "5", "--k", "2", *checkpoint]) == 0
    capsys.readouterr()
    better = tmp_path / "better.safetensors"
    assert main(["distil", "--out", str(better), "--steps", "3", *checkpoint]) == 0
    assert read_metadata(better)[1]["distilled"]["settings"]["steps"] == 3
    assert read_metadata(better)[1]["settings"] == training["settings"]
    first, second = weights(load(out)), weights(load(better))
    assert {name for name in first if not torch.equal(first[name], second[name])} <= {n for n in first if "mtp." in n}
    assert not torch.equal(first["mtp.0.projection"], second["mtp.0.projection"])
    capsys.readouterr()
    figures = ["--json", str(tmp_path / "b.json"), "--png", str(tmp_path / "b.png")]
    small = ["--k", "1", "--prompts", "2", "--max-new-tokens", "6", "--temperature", "0"]
    assert main(["bench", *small, *figures, *checkpoint]) == 0
    table = capsys.readouterr().out
    assert "k=1" in table and "identical" in table and "t(2)/t(1)" in table
    assert (tmp_path / "b.png").stat().st_size > 10_000
    assert '"speedup"' in (tmp_path / "b.json").read_text()
    assert main(["export", "--hf", str(tmp_path / "hf"), *checkpoint]) == 0
    assert sorted(path.name for path in (tmp_path / "hf").iterdir()) == ["config.json", "model.safetensors"]


def test_bench_shows_what_routes_add_and_what_dspark_s_scheduler_leaves_out(tmp_path, capsys):
    figures = ["--json", str(tmp_path / "b.json"), "--png", str(tmp_path / "b.png")]
    small = ["--k", "2", "--prompts", "2", "--batch", "2", "--max-new-tokens", "12", "--temperature", "0"]
    assert main(["bench", *small, "--routes", "dspark", "lookup", "--schedule", "4", *figures]) == 0
    routes = {route["name"]: route for route in json.loads((tmp_path / "b.json").read_text())["routes"]}
    assert list(routes) == ["k=0", "k=2", "dspark", "lookup", "dspark+sched"]
    added = {name: (route["parameters"], route["kv_bytes_per_token"]) for name, route in routes.items()}
    assert added["k=0"] == added["lookup"] == (0, 0)
    # two of the three modules ran: two layers of keys and values of 96 numbers, four bytes each
    assert added["k=2"] == (388_512, 2 * 2 * 96 * 4)
    assert added["dspark+sched"] == added["dspark"] and added["dspark"][0] > 100_000
    # a budget of four tokens for two sequences: the last known token of each and at most one draft
    assert len(routes["dspark"]["survival"]) > 1 >= len(routes["dspark+sched"]["survival"])
    line = next(line for line in capsys.readouterr().out.split("\n") if line.startswith("dspark+sched"))
    assert f"{added['dspark'][0]:,}" in line and "identical" in line


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["generate", "--prompt", ""], "prompt 0 is empty"),
        (["generate", "--prompt", "x", "--temperature", "-1"], "temperature"),
        (["generate", "--prompt", "x", "--checkpoint", "/nowhere.safetensors"], "no such checkpoint"),
        (["bench", "--prompts", "100000"], "limit"),
        (["bench", "--schedule"], "add --routes dspark"),
        (["bench", "--routes", "dspark", "--schedule", "0"], "budget"),
    ],
)
def test_command_line_errors_are_one_line(capsys, arguments, message):
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
