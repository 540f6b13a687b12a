"""transformers as an external oracle: the exported model is Llama with native MTP, and `generate` agrees with us."""

import pytest
import torch
from mtp_reference import prompts_for, small_model

from mtp import NativeMTP, decode, load
from mtp.export_hf import export_hf, load_hf
from mtp.prompts import load_prompts

transformers = pytest.importorskip(
    "transformers", minversion="5.15", reason="native MTP came with transformers 5.15 (a development dependency)"
)
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="module", params=[1, 2, 3])
def pair(request, tmp_path_factory):
    """The shipped model with so many of its modules, here and in transformers."""
    ours = load(n_mtp=request.param)
    return ours, load_hf(export_hf(ours, tmp_path_factory.mktemp(f"hf{request.param}")))


def generate(hf, prompt, new, **options):
    """New tokens and the number of the target's forward passes."""
    passes = []
    hook = hf.model.register_forward_hook(lambda *_: passes.append(1))
    try:
        output = hf.generate(
            torch.tensor([prompt]), max_new_tokens=new, do_sample=False, pad_token_id=0, eos_token_id=None, **options
        )
    finally:
        hook.remove()
    return output[0, len(prompt) :].tolist(), len(passes)


def test_logits_are_the_same(pair):
    ours, hf = pair
    ids = torch.tensor([load_prompts("code", 1)[0].ids])
    with torch.no_grad():
        expected = hf(ids).logits
        actual = ours.head(ours(ids, ours.new_cache(1, ids.shape[1])).hidden)
    torch.testing.assert_close(actual, expected, atol=2e-3, rtol=1e-4)


@pytest.mark.parametrize("number", range(4))
def test_same_tokens_and_same_rounds(pair, number):
    ours, hf = pair
    prompt = load_prompts("code", 40)[10 * number].ids
    run = decode(ours, prompt, NativeMTP(ours), max_new_tokens=40)
    # The first pass of either is the prefill.
    assert generate(hf, prompt, 40, use_mtp=True) == (run.tokens[0], 1 + len(run.rounds))


def test_plain_generate_agrees(pair):
    ours, hf = pair
    prompt = load_prompts("prose", 1)[0].ids
    assert generate(hf, prompt, 24) == (decode(ours, prompt, max_new_tokens=24).tokens[0], 24)


def test_untrained_model_with_uneven_gains(tmp_path):
    """Trained gains lie near one and would hide a norm that is left out or exported to the wrong place."""
    ours = small_model(4)
    hf = load_hf(export_hf(ours, tmp_path))
    for prompt in prompts_for(ours, 3, seed=2, shortest=4):
        run = decode(ours, prompt, NativeMTP(ours), max_new_tokens=24)
        assert generate(hf, prompt, 24, use_mtp=True) == (run.tokens[0], 1 + len(run.rounds))
