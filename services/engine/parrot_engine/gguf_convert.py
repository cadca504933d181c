"""Turns a GGUF file of a Llama-architecture model into a Hugging Face model folder.

Weights are dequantized and stored as bfloat16. Needs neither torch nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

Say = Callable[[str], None]
"""Takes a line of progress."""

CONTROL_TOKEN: Final = 3
"""GGUF's token type of control tokens."""

_TOP_NAMES: Final = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


class UnsupportedModelError(Exception):
    """The file holds a model this converter does not know."""


def convert(source: Path, folder: Path, say: Say) -> None:
    """Writes the model in `source` to `folder`, which exists and is empty.

    Raises:
        UnsupportedModelError: the architecture, a tensor or the tokenizer is not known.
    """
    from gguf import GGUFReader

    say(f"reading {source.name}")
    reader = GGUFReader(source)
    fields = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama":
        raise UnsupportedModelError(f"architecture {fields['general.architecture']}, not llama")
    _write_tokenizer(fields, folder)
    names = _write_weights(reader.tensors, fields, folder, say)
    _write_config(fields, folder, tied="lm_head.weight" not in names)


def _write_weights(tensors: list[Any], fields: dict[str, Any], folder: Path, say: Say) -> set[str]:
    say(f"dequantizing {len(tensors)} tensors")
    weights: dict[str, tuple[tuple[int, ...], bytes]] = {}
    for count, tensor in enumerate(tensors, start=1):
        name, weight = _weight(tensor, fields)
        weights[name] = (weight.shape, _bfloat16(weight))
        if count % 90 == 0:
            say(f"{count} of {len(tensors)} tensors")
    say("writing the weights")
    _write_safetensors(folder / "model.safetensors", weights)
    return set(weights)


def _write_safetensors(path: Path, weights: dict[str, tuple[tuple[int, ...], bytes]]) -> None:
    """The safetensors format: the header's length, the header as JSON, the tensors one after another."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, data) in weights.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": (offset, offset + len(data))}
        offset += len(data)
    head = json.dumps(header).encode()
    # Tensors start at a multiple of eight bytes.
    head += b" " * (-len(head) % 8)
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.writelines(data for _, data in weights.values())


def _weight(tensor: Any, fields: dict[str, Any]) -> tuple[str, Any]:
    import numpy as np
    from gguf import dequantize

    name = _hugging_face_name(tensor.name)
    weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    if name.endswith("q_proj.weight"):
        weight = _rotary_halves(weight, fields["llama.attention.head_count"])
    elif name.endswith("k_proj.weight"):
        weight = _rotary_halves(weight, fields["llama.attention.head_count_kv"])
    return name, weight


def _hugging_face_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in _TOP_NAMES:
        return f"{_TOP_NAMES[stem]}.weight"
    _, _, rest = stem.partition("blk.")
    layer, _, part = rest.partition(".")
    if part not in _BLOCK_NAMES:
        raise UnsupportedModelError(f"tensor {name}")
    return f"model.layers.{layer}.{_BLOCK_NAMES[part]}.weight"


def _rotary_halves(weight: Any, heads: int) -> Any:
    """GGUF stores each head's rotary pairs side by side; Hugging Face stores the two halves apart."""
    rows, columns = weight.shape
    pairs = rows // heads // 2
    return weight.reshape(heads, pairs, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _bfloat16(weight: Any) -> bytes:
    """Rounds to nearest, ties to even, as the hardware does."""
    import numpy as np

    bits = np.ascontiguousarray(weight).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    data: bytes = rounded.astype(np.uint16).tobytes()
    return data


def _write_config(fields: dict[str, Any], folder: Path, *, tied: bool) -> None:
    heads = fields["llama.attention.head_count"]
    width = fields["llama.embedding_length"]
    _write_json(
        folder / "config.json",
        {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": width,
            "intermediate_size": fields["llama.feed_forward_length"],
            "num_hidden_layers": fields["llama.block_count"],
            "num_attention_heads": heads,
            "num_key_value_heads": fields["llama.attention.head_count_kv"],
            "head_dim": width // heads,
            "hidden_act": "silu",
            "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
            "rope_theta": fields["llama.rope.freq_base"],
            "max_position_embeddings": fields["llama.context_length"],
            "vocab_size": len(fields["tokenizer.ggml.tokens"]),
            "tie_word_embeddings": tied,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
            "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
            "pad_token_id": fields["tokenizer.ggml.padding_token_id"],
            "dtype": "bfloat16",
        },
    )
    _write_json(
        folder / "generation_config.json",
        {
            "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
            "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
        },
    )


def _write_tokenizer(fields: dict[str, Any], folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    kind = fields["tokenizer.ggml.model"], fields["tokenizer.ggml.pre"]
    if kind != ("gpt2", "smollm"):
        raise UnsupportedModelError(f"tokenizer {'/'.join(kind)}, not gpt2/smollm")
    pieces: list[str] = fields["tokenizer.ggml.tokens"]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    # What GGUF calls smollm: every digit by itself, then GPT-2's own splitting.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [piece for piece, kind in _typed(fields) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(piece, special=True, normalized=False) for piece in control])
    tokenizer.save(str(folder / "tokenizer.json"))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))


def _typed(fields: dict[str, Any]) -> Iterator[tuple[str, int]]:
    return zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"], strict=True)


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    def piece(role: str) -> str:
        return str(fields["tokenizer.ggml.tokens"][fields[f"tokenizer.ggml.{role}_token_id"]])

    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": piece("bos"),
        "eos_token": piece("eos"),
        "unk_token": piece("unknown"),
        "pad_token": piece("padding"),
        "add_bos_token": bool(fields["tokenizer.ggml.add_bos_token"]),
        "model_max_length": fields["llama.context_length"],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False))
