"""Training drafters, their checkpoints, and the registry of routes."""

import json

import pytest
import torch
from routes_enumeration import tiny_target
from routes_shipped import prompts, target
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import mtp.data
from mtp import CheckpointError, decode, save
from mtp.cli import main
from mtp.drafter_checkpoint import load_module, read_drafter_metadata, save_module
from mtp.drafter_training import evaluate_drafter, target_digest, train_drafter
from mtp.drafters.eagle import EagleHead
from mtp.routes import CHECKPOINTS, ROUTES, load_drafter, new_drafter, trainable

TEXT = torch.randint(8, (3000,), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
SIZES = {"batch": 4, "length": 24}


def fresh(target, seed=0):
    torch.manual_seed(seed)
    return EagleHead(target, d_ff=16, unroll=2)


def trained(target, **changes):
    return train_drafter(fresh(target), target, TEXT, **{"steps": 3, **SIZES, **changes})


def same(one, other):
    return all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_training_depends_on_seed_alone():
    target = tiny_target(vocab=8)
    first = trained(target, seed=1)
    torch.rand(7)  # the global generator's state must not matter
    assert same(first, trained(target, seed=1))
    assert not same(first, trained(target, seed=2))


@pytest.mark.parametrize("route", ["independent", "eagle"])
def test_loss_falls_and_the_target_stays(route):
    target = tiny_target(vocab=8)
    digest = target_digest(target)
    drafter = new_drafter(route, target)
    before = evaluate_drafter(drafter, target, TEXT, batches=2, **SIZES)
    reports = []
    train_drafter(drafter, target, TEXT, steps=30, on_step=reports.append, **SIZES)
    assert evaluate_drafter(drafter, target, TEXT, batches=2, **SIZES) < 0.95 * before
    assert target_digest(target) == digest
    assert [report.step for report in reports] == list(range(1, 31))
    assert not {name.split(".")[0] for name, _ in drafter.named_parameters()} & {"embedding", "head"}


def test_bad_training_is_named():
    target = tiny_target(vocab=8)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        trained(target, steps=0)
    with pytest.raises(ValueError, match="3000 bytes; a window needs 5000"):
        trained(target, length=5000)
    with pytest.raises(ValueError, match="length=100 exceeds the target's max_length=64"):
        trained(target, length=100)
    with pytest.raises(FloatingPointError, match="lower lr"):
        trained(target, steps=30, lr=1e30)


def saved(tmp_path, target, **changes):
    path = tmp_path / "eagle.safetensors"
    save_module(trained(target, **changes), path, route="eagle", target=target, training={"steps": 3})
    return path


def test_round_trip(tmp_path):
    target = tiny_target(vocab=8)
    path = saved(tmp_path, target)
    drafter = load_module(EagleHead, path, route="eagle", target=target)
    assert drafter.config == {"d_ff": 16, "unroll": 2, "regression": 0.1}
    for one, other in zip(drafter.parameters(), trained(target).parameters(), strict=True):
        assert torch.allclose(one, other.half().float())
    assert not any(p.requires_grad for p in drafter.parameters())
    assert read_drafter_metadata(path)["training"] == {"steps": 3}
    run = decode(target, [1, 2], load_drafter("eagle", target, path=path, k=2), max_new_tokens=8)
    assert run.tokens == decode(target, [1, 2], max_new_tokens=8).tokens


def test_another_target_is_refused(tmp_path):
    path = saved(tmp_path, tiny_target(vocab=8))
    with pytest.raises(CheckpointError, match="was trained against target .*train the drafter anew"):
        load_drafter("eagle", tiny_target(seed=1, vocab=8), path=path)


def test_the_digest_leaves_mtp_modules_out_and_sees_every_weight():
    target = tiny_target(vocab=8)
    before = target_digest(target)
    target.mtp.append(torch.nn.Linear(2, 2))
    assert target_digest(target) == before
    with torch.no_grad():
        target.blocks[1].down[3, 2] += 0.01
    assert target_digest(target) != before


def rewrite(path, change_metadata=lambda metadata: None, change_tensors=lambda tensors: None):
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
    tensors = load_file(path)
    change_metadata(metadata)
    change_tensors(tensors)
    save_file(tensors, path, metadata)


FAULTS = {
    "holds a drafter for route 'dflash', not 'eagle'": {"change_metadata": lambda m: m.update(route="dflash")},
    "format is 'other', expected 'mtp-drafter-1'": {"change_metadata": lambda m: m.update(format="other")},
    "unusable metadata": {"change_metadata": lambda m: m.update(training="{")},
    "unusable config.*unexpected keyword": {"change_metadata": lambda m: m.update(config=json.dumps({"width": 1}))},
    "unusable config.*unroll must be": {"change_metadata": lambda m: m.update(config=json.dumps({"unroll": 0}))},
    "has shape .* the config needs|shape": {"change_metadata": lambda m: m.update(config=json.dumps({"d_ff": 20}))},
    "1 tensors missing.*module.post_gain": {"change_tensors": lambda t: t.pop("module.post_gain")},
    "no place for.*extra": {"change_tensors": lambda t: t.update(extra=torch.zeros(1))},
}


@pytest.mark.parametrize("message", FAULTS)
def test_unfit_files_are_named(tmp_path, message):
    target = tiny_target(vocab=8)
    path = saved(tmp_path, target)
    rewrite(path, **FAULTS[message])
    with pytest.raises(CheckpointError, match=message):
        load_drafter("eagle", target, path=path)


def test_missing_and_truncated_files_are_named(tmp_path):
    target = tiny_target(vocab=8)
    with pytest.raises(CheckpointError, match="no such checkpoint; .*train-drafter --route eagle"):
        load_drafter("eagle", target, path=tmp_path / "none.safetensors")
    path = saved(tmp_path, target)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match="truncated"):
        load_drafter("eagle", target, path=path)


def test_wrong_route_names_are_answered():
    target = tiny_target(vocab=8)
    with pytest.raises(ValueError, match="unknown route 'egale'; there are native, lookup"):
        load_drafter("egale", target)
    with pytest.raises(ValueError, match="'lookup' has nothing to train; these have: independent, eagle"):
        new_drafter("lookup", target)
    with pytest.raises(ValueError, match="leave path out"):
        load_drafter("lookup", target, path="x.safetensors")


@pytest.mark.parametrize("name", ROUTES)
def test_every_route_decodes_with_the_shipped_target(name):
    drafter = load_drafter(name, target(), k=2)
    assert drafter.k == 2
    run = decode(target(), prompts()[0], drafter, max_new_tokens=6)
    assert run.tokens == decode(target(), prompts()[0], max_new_tokens=6).tokens


def test_shipped_drafters_say_where_they_come_from_and_are_small():
    for name in trainable():
        path = CHECKPOINTS / f"{name}.safetensors"
        metadata = read_drafter_metadata(path)
        assert metadata["target"] == target_digest(target())
        assert {"settings", "text", "held_out_loss"} <= set(metadata["training"])
        assert path.stat().st_size < 4e6


def test_the_command_writes_a_loadable_checkpoint(tmp_path, capsys, monkeypatch):
    target = tiny_target(vocab=8)
    save(target, tmp_path / "target.safetensors")
    monkeypatch.setattr(mtp.data, "load_split", lambda: (TEXT, TEXT))
    arguments = ["--steps", "2", "--length", "24", "--batch", "2", "--checkpoint", str(tmp_path / "target.safetensors")]
    out = tmp_path / "out.safetensors"
    assert main(["train-drafter", "--route", "eagle", "--out", str(out), *arguments]) == 0
    assert "held-out loss" in capsys.readouterr().out
    metadata = read_drafter_metadata(out)
    assert metadata["training"]["settings"] == {"steps": 2, "length": 24, "batch": 2, "seed": 0}
    load_drafter("eagle", target, path=out)
    assert main(["train-drafter", "--route", "lookup", "--out", str(out), *arguments]) == 1
    assert "nothing to train" in capsys.readouterr().err
