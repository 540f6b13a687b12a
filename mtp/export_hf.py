"""Export to Hugging Face's format: LlamaForCausalLM with native MTP, as transformers >= 5.15 reads it.

The modules become `model.layers.{L + k}.*` with `enorm`, `hnorm`, `eh_proj` and `shared_head.norm`, the names of
DeepSeek-V3's checkpoints, and the config says `num_mtp_layers`. Two conventions differ and are converted: rotary pairs
lie side by side here and half a head apart there, and norms have no epsilon here and a negligible one there.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from .model import Block, Transformer


def hf_config(model: Transformer) -> dict:
    """config.json of the exported model."""
    c = model.config
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab_size,
        "hidden_size": c.d_model,
        "intermediate_size": c.d_ff,
        "num_hidden_layers": c.n_layers,
        "num_attention_heads": c.n_heads,
        "num_key_value_heads": c.n_heads,
        "head_dim": c.d_head,
        "max_position_embeddings": c.max_length,
        "rms_norm_eps": 1e-12,
        "rope_parameters": {"rope_type": "default", "rope_theta": c.rope_theta},
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
        "dtype": "float32",
        **({"num_mtp_layers": c.n_mtp} if c.n_mtp else {}),
    }


def hf_tensors(model: Transformer) -> dict[str, Tensor]:
    """Weights under Hugging Face's names, fp32."""
    tensors = {"model.embed_tokens.weight": model.embedding, "model.norm.weight": model.final_gain}
    for number, block in enumerate(model.blocks):
        tensors |= _block(block, f"model.layers.{number}", model.config.n_heads)
    for number, module in enumerate(model.mtp, start=model.config.n_layers):
        prefix = f"model.layers.{number}"
        tensors |= _block(module.block, prefix, model.config.n_heads)
        tensors[f"{prefix}.enorm.weight"] = module.embedding_gain
        tensors[f"{prefix}.hnorm.weight"] = module.hidden_gain
        tensors[f"{prefix}.eh_proj.weight"] = module.projection
        tensors[f"{prefix}.shared_head.norm.weight"] = module.post_gain
    return {name: tensor.detach().float().cpu().contiguous().clone() for name, tensor in tensors.items()}


def export_hf(model: Transformer, folder: str | Path) -> Path:
    """Write config.json and model.safetensors into a folder, which is made if need be. Returns the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_config(model), indent=2) + "\n", encoding="utf-8")
    save_file(hf_tensors(model), folder / "model.safetensors", {"format": "pt"})
    return folder


def _block(block: Block, prefix: str, n_heads: int) -> dict[str, Tensor]:
    q, k, v = block.qkv
    gate, up = block.gate_up
    return {
        f"{prefix}.input_layernorm.weight": block.attention_gain,
        f"{prefix}.self_attn.q_proj.weight": _halves(q, n_heads),
        f"{prefix}.self_attn.k_proj.weight": _halves(k, n_heads),
        f"{prefix}.self_attn.v_proj.weight": v,
        f"{prefix}.self_attn.o_proj.weight": block.out,
        f"{prefix}.post_attention_layernorm.weight": block.mlp_gain,
        f"{prefix}.mlp.gate_proj.weight": gate,
        f"{prefix}.mlp.up_proj.weight": up,
        f"{prefix}.mlp.down_proj.weight": block.down,
    }


def _halves(weight: Tensor, n_heads: int) -> Tensor:
    """Rows of a (d, d) projection from interleaved rotary pairs to Llama's halves, head by head."""
    d = weight.shape[0]
    return weight.view(n_heads, d // n_heads // 2, 2, weight.shape[1]).transpose(1, 2).reshape(d, weight.shape[1])


def load_hf(folder: str | Path):
    """The exported model as transformers' LlamaForCausalLM, ready for `generate(use_mtp=True)`.

    transformers finds MTP weights through the patterns that a model class ignores at loading; Llama, which has no
    published MTP checkpoint, registers none, so they are given to this instance. Raises ImportError without
    transformers >= 5.15.
    """
    from transformers import LlamaForCausalLM

    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    first, count = config["num_hidden_layers"], config.get("num_mtp_layers", 0)
    patterns = [rf"model\.layers\.{number}\." for number in range(first, first + count)]

    class WithModules(LlamaForCausalLM):
        _keys_to_ignore_on_load_unexpected = patterns

    return WithModules.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa").eval()
