"""The model, its cache and its checkpoint file."""

import json
from dataclasses import replace

import pytest
import torch
from mtp_reference import SMALL, full_hidden, prompts_for, small_model, trained_model
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from mtp import CheckpointError, ModelConfig, Transformer, load, read_metadata, save
from mtp.data import decode_text, encode, is_held_out, load_split, sample_batch
from mtp.muon import Muon, orthogonalise
from mtp.rope import rope_table
from mtp.tree import accept_path, ancestor_mask, depths

CLOSE = {"atol": 2e-5, "rtol": 2e-5}  # fp32, a few products of sums of about 50 terms


class TestForward:
    def test_pieces_equal_the_whole(self):
        model = small_model()
        ids = prompts_for(model, 1, shortest=30, longest=30)[0]
        cache = model.new_cache(1, 40)
        parts = [model(torch.tensor([ids[a:b]]), cache).hidden for a, b in ((0, 9), (9, 10), (10, 14), (14, 30))]
        torch.testing.assert_close(torch.cat(parts, 1), full_hidden(model, ids), **CLOSE)

    def test_rollback_overwrites(self):
        model = small_model()
        ids = prompts_for(model, 1, shortest=20, longest=20)[0]
        cache = model.new_cache(1, 40)
        model(torch.tensor([ids[:12] + [3] * 8]), cache)
        cache.rollback([12])
        torch.testing.assert_close(
            model(torch.tensor([ids[12:]]), cache).hidden, full_hidden(model, ids)[:, 12:], **CLOSE
        )

    def test_ragged_rows_equal_each_alone(self):
        model = small_model()
        prompts = prompts_for(model, 3, shortest=6, longest=12)
        cache = model.new_cache(3, 30)
        padded = torch.zeros(3, 12, dtype=torch.long)
        for row, prompt in enumerate(prompts):
            padded[row, : len(prompt)] = torch.tensor(prompt)
        model(padded, cache)
        cache.rollback([len(prompt) for prompt in prompts])
        more = torch.tensor([[1, 2, 3], [4, 5, 6], [7, 8, 9]])
        hidden = model(more, cache).hidden
        for row, prompt in enumerate(prompts):
            alone = full_hidden(model, prompt + more[row].tolist())[0, -3:]
            torch.testing.assert_close(hidden[row], alone, **CLOSE)

    def test_a_tree_equals_its_paths(self):
        model = small_model()
        prompt = prompts_for(model, 1, shortest=8, longest=8)[0]
        parents, tokens = [-1, -1, 0, 0, 1, 4], [3, 4, 5, 6, 7, 8]
        cache = model.new_cache(1, 30)
        model(torch.tensor([prompt]), cache)
        positions = torch.tensor([[8, *(8 + d for d in depths(parents))]])
        fed = torch.tensor([[2, *tokens]])
        hidden = model(fed, cache, positions=positions, block_mask=ancestor_mask(parents)).hidden[0]
        for path in ([0], [1], [0, 2], [0, 3], [1, 4], [1, 4, 5]):
            alone = full_hidden(model, [*prompt, 2, *(tokens[i] for i in path)])[0]
            torch.testing.assert_close(hidden[path[-1] + 1], alone[-1], **CLOSE)
        # Compaction: after keeping a path, the cache goes on as if that path had been fed alone.
        path = [1, 4, 5]
        cache.keep([8], [[0, *(i + 1 for i in path)]])
        assert cache.lengths == [12]
        after = model(torch.tensor([[9]]), cache).hidden[0, 0]
        alone = full_hidden(model, [*prompt, 2, *(tokens[i] for i in path), 9])[0, -1]
        torch.testing.assert_close(after, alone, **CLOSE)

    def test_rope_turns_pairs_by_position(self):
        table = rope_table(10, 8, 10000.0)
        assert table.shape == (10, 3, 1, 4)
        assert torch.equal(table[:, 2], torch.ones(10, 1, 4, dtype=torch.complex64))
        torch.testing.assert_close(table[3, 0, 0, 1].angle(), torch.tensor(3 * 10000.0 ** (-2 / 8)))
        torch.testing.assert_close(table[:, 0], table[:, 1])

    def test_losses_are_those_of_the_cached_passes(self):
        """Head k of `losses` predicts token i + k + 1 from the modules as decoding runs them."""
        model = small_model()
        ids = torch.randint(16, (2, 30), generator=torch.Generator().manual_seed(0))
        length = 30 - 4
        hidden = model(ids[:, :length], model.new_cache(2, 40)).hidden
        expected = [F.cross_entropy(model.head(hidden).flatten(0, 1), ids[:, 1 : length + 1].flatten())]
        for k in range(3):
            shifted = ids[:, k + 1 : length + k + 1]
            hidden = model.module_forward(k, shifted, hidden, model.new_cache(2, 40, n_layers=1))
            targets = ids[:, k + 2 : length + k + 2]
            expected.append(F.cross_entropy(model.head(hidden).flatten(0, 1), targets.flatten()))
        torch.testing.assert_close(torch.stack(model.losses(ids)), torch.stack(expected), **CLOSE)

    def test_folding_changes_nothing(self):
        ids = torch.randint(16, (2, 30), generator=torch.Generator().manual_seed(1))
        torch.manual_seed(0)
        model = Transformer(SMALL)
        before = torch.stack(model.losses(ids)).detach()
        torch.testing.assert_close(torch.stack(model.fold().losses(ids)), before, **CLOSE)

    @pytest.mark.parametrize(
        "values, message",
        [
            ({"d_model": 0}, "d_model"),
            ({"n_heads": 3}, "rotary pairs"),
            ({"n_mtp": -1}, "n_mtp"),
            ({"d_ff": 1.5}, "d_ff"),
        ],
    )
    def test_impossible_configs(self, values, message):
        with pytest.raises(ValueError, match=message):
            replace(SMALL, **values)

    def test_cache_sizes_are_reported(self):
        cache = small_model().new_cache(2, 10)
        cache.rollback([3, 5])
        per_token = 2 * 2 * 32 * 4  # layers, K and V, d, bytes
        assert (cache.nbytes, cache.nbytes_used) == (2 * 10 * per_token, 8 * per_token)


class TestTree:
    PARENTS = [-1, -1, 0, 0, 1]

    def test_depths_and_mask(self):
        assert depths(self.PARENTS) == [1, 1, 2, 2, 2]
        sees = [set(row.nonzero().flatten().tolist()) for row in ancestor_mask(self.PARENTS)]
        assert sees == [{0}, {0, 1}, {0, 2}, {0, 1, 3}, {0, 1, 4}, {0, 2, 5}]

    def test_sibling_acceptance_keeps_the_distribution(self):
        """Two deterministic siblings, all outcomes: token frequencies are p's."""
        p = torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64).repeat(3, 1)
        result = torch.zeros(3, dtype=torch.float64)
        points = [(i + 0.5) / 4 for i in range(4)]
        for first in points:
            for second in points:
                path, weights = accept_path([-1, -1], [0, 1], p, [first, second])
                if path:
                    result[[0, 1][path[0]]] += 1 / 16
                else:
                    result += weights / weights.sum() / 16
        torch.testing.assert_close(result, p[0])

    def test_greedy_follows_the_argmax(self):
        p = torch.eye(3)[[1, 0, 2, 0, 0, 1]]  # after the root: 1; after node 1 (token 1): 2
        path, weights = accept_path(self.PARENTS, [0, 1, 0, 1, 2], p, None)
        assert path == [1, 4]
        assert int(weights.argmax()) == 1


class TestCheckpoint:
    @pytest.fixture
    def file(self, tmp_path):
        save(small_model(), tmp_path / "model.safetensors", {"steps": 3})
        return tmp_path / "model.safetensors"

    def rewrite(self, file, change):
        tensors = load_file(file)
        metadata = {"format": "mtp-transformer-1", "training": "{}", "config": json.dumps(SMALL.__dict__)}
        change(tensors, metadata)
        save_file(tensors, file, metadata)

    def test_round_trip(self, file):
        model = load(file)
        config, training = read_metadata(file)
        assert (config, training) == (SMALL, {"steps": 3})
        for name, parameter in small_model().named_parameters():
            torch.testing.assert_close(model.get_parameter(name), parameter.half().float())
            assert not model.get_parameter(name).requires_grad

    def test_fewer_modules(self, file):
        assert len(load(file, n_mtp=1).mtp) == 1
        with pytest.raises(CheckpointError, match="has 3 MTP modules, n_mtp=4"):
            load(file, n_mtp=4)

    def test_missing_file(self, tmp_path):
        with pytest.raises(CheckpointError, match="python -m mtp train"):
            load(tmp_path / "none.safetensors")

    @pytest.mark.parametrize("keep", [0, 4, 100, 3000])
    def test_truncated_file(self, file, keep):
        file.write_bytes(file.read_bytes()[:keep])
        with pytest.raises(CheckpointError, match="truncated"):
            load(file)

    @pytest.mark.parametrize(
        "change, message",
        [
            (lambda t, m: t.pop("embedding"), "1 tensors missing, the first is embedding"),
            (lambda t, m: t.pop("mtp.1.projection"), "MTP modules 1 are incomplete; config says n_layers=2, n_mtp=3"),
            (lambda t, m: t.update(extra=torch.zeros(1)), "no place for, the first is extra"),
            (lambda t, m: t.update(final_gain=torch.zeros(7)), r"final_gain has shape \(7,\), \(32,\) is needed"),
            (lambda t, m: m.update(format="other"), "format is 'other'"),
            (lambda t, m: m.update(config="{"), "unusable config"),
            (lambda t, m: m.pop("config"), "unusable config"),
            (lambda t, m: m.update(config=json.dumps({**SMALL.__dict__, "n_experts": 4})), "unknown entries"),
            (lambda t, m: m.update(config=json.dumps({**SMALL.__dict__, "n_layers": 3})), "another config"),
            (lambda t, m: m.update(config=json.dumps({**SMALL.__dict__, "n_mtp": 1})), "no place for"),
        ],
    )
    def test_files_that_do_not_fit(self, file, change, message):
        self.rewrite(file, change)
        with pytest.raises(CheckpointError, match=message):
            load(file)

    def test_values_that_fp16_cannot_hold(self, tmp_path):
        model = small_model()
        model.final_gain[0] = 1e6
        with pytest.raises(CheckpointError, match="final_gain"):
            save(model, tmp_path / "model.safetensors")
        assert list(tmp_path.iterdir()) == []


class TestMuon:
    @pytest.mark.parametrize("shape", [(24, 24), (24, 60), (60, 24)])
    def test_orthogonalise_flattens_the_spectrum(self, shape):
        matrices = torch.randn(5, *shape, generator=torch.Generator().manual_seed(0))
        values = torch.linalg.svdvals(orthogonalise(matrices))
        # The smallest singular values of a square matrix need more steps than the usual five.
        assert values.max() < 1.3
        assert values[:, :-2].min() > 0.5
        # Each matrix on its own, whatever its size.
        alone = orthogonalise(matrices[2:3])[0]
        torch.testing.assert_close(orthogonalise(1000 * matrices)[2], alone, atol=1e-4, rtol=1e-4)

    def test_a_stack_is_updated_matrix_by_matrix(self):
        stack = torch.zeros(3, 8, 8).requires_grad_()
        single = torch.zeros(8, 8).requires_grad_()
        gradient = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0))
        for parameter, g in ((stack, gradient), (single, gradient[1])):
            parameter.grad = g.clone()
            Muon([parameter], lr=0.1).step()
        torch.testing.assert_close(stack.detach()[1], single.detach(), atol=1e-5, rtol=1e-4)


class TestData:
    def test_ascii_round_trip(self):
        assert decode_text(encode("def f():\n\treturn 1\n")) == "def f():\n\treturn 1\n"
        assert encode("né") == [110, 63]
        assert max(encode("".join(map(chr, range(300))))) < 128

    def test_split_depends_on_the_path_alone(self, tmp_path):
        for number in range(64):
            (tmp_path / f"m{number}.py").write_text(f"x = {number}\n")
        (tmp_path / "tests").mkdir()
        (tmp_path / "tests" / "t.py").write_text("never\n")
        train, held_out = (bytes(part.tolist()).decode() for part in load_split(tmp_path))
        for number in range(64):
            line = f"x = {number}\n\0"
            assert (line in held_out) == is_held_out(f"m{number}.py") != (line in train)
        assert "never" not in train + held_out
        assert held_out

    def test_no_source_files(self, tmp_path):
        with pytest.raises(FileNotFoundError, match="root="):
            load_split(tmp_path)

    def test_batches_are_windows_of_the_text(self):
        text = torch.arange(100, dtype=torch.uint8)
        batch = sample_batch(text, 6, 10, torch.Generator().manual_seed(0))
        assert batch.shape == (6, 10) and batch.dtype == torch.long
        assert (batch.diff(dim=1) == 1).all()
        assert len(set(batch[:, 0].tolist())) > 1


def test_trained_model_is_better_than_chance():
    text = torch.tensor(encode("    def add_argument(self, *args, **kwargs):\n        return self\n"))[None]
    losses = trained_model().losses(text)
    assert all(float(loss) < 4.0 for loss in losses)  # chance is ln 128 = 4.85


def test_default_config_is_the_shipped_one():
    config, training = read_metadata()
    assert config == ModelConfig()
    assert training["text"].startswith("standard library of Python 3.")
    assert {"steps", "seed"} <= set(training["settings"])
    assert len(training["held_out_bits_per_byte"]) == 4
