"""A tiny model with random weights and the real tokenizer: it starts fast and its steps cost nothing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, Final

from parrot_engine.models import find_model
from parrot_engine.settings import default_cache_dir

LAYERS: Final = 2
HIDDEN: Final = 64
HEADS: Final = 2
MLP: Final = 128
WINDOW: Final = 2048
TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


def kv_bytes(blocks: int, block_tokens: int = 32) -> int:
    """Memory for so many blocks of KV of this model, in float32."""
    return blocks * block_tokens * LAYERS * HIDDEN * 2 * 4


def write_tiny_model(folder: Path) -> Path:
    """Writes a Llama of two layers, the same every time, into `folder`; returns the folder."""
    real = find_model("smollm2", default_cache_dir(), lambda line: None).path
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (real / name).exists():
            shutil.copy(real / name, folder / name)
    config = json.loads((real / "config.json").read_text()) | {
        "num_hidden_layers": LAYERS,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "intermediate_size": MLP,
        "max_position_embeddings": WINDOW,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    config.pop("dtype", None)
    (folder / "config.json").write_text(json.dumps(config))
    _write_weights(folder / "model.safetensors", int(config["vocab_size"]))
    return folder


def _write_weights(file: Path, vocab: int) -> None:
    import torch
    from safetensors.torch import save_file

    source = torch.Generator().manual_seed(7)

    def matrix(rows: int, columns: int) -> Any:
        # Wider than a trained model's: greedy choices then have no near ties.
        return torch.randn(rows, columns, generator=source) * (3 / columns**0.5)

    weights = {
        "model.embed_tokens.weight": matrix(vocab, HIDDEN),
        "model.norm.weight": torch.ones(HIDDEN),
        # Not the embedding again: a model with random weights would then repeat its last token for ever.
        "lm_head.weight": matrix(vocab, HIDDEN),
    }
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        weights[f"{name}.input_layernorm.weight"] = torch.ones(HIDDEN)
        weights[f"{name}.post_attention_layernorm.weight"] = torch.ones(HIDDEN)
        for projection in ("q_proj", "k_proj", "v_proj", "o_proj"):
            weights[f"{name}.self_attn.{projection}.weight"] = matrix(HIDDEN, HIDDEN)
        weights[f"{name}.mlp.gate_proj.weight"] = matrix(MLP, HIDDEN)
        weights[f"{name}.mlp.up_proj.weight"] = matrix(MLP, HIDDEN)
        weights[f"{name}.mlp.down_proj.weight"] = matrix(HIDDEN, MLP)
    save_file(weights, file, metadata={"format": "pt"})
