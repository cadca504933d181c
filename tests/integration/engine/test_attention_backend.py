"""The attention backend within vLLM: who gets it, where it steps aside, and which rows are its."""

from __future__ import annotations

import gc
import logging
import os
import pickle
import subprocess
import sys
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.integration.engine.backends import context, generate, tokens_of
from tests.support.attention import builder, tokens, watched
from tests.support.tiny_model import kv_bytes, write_tiny_model
from tests.support.vllm_engine import InProcessEngine

from parrot_engine.backends.base import Sampling
from parrot_engine.backends.vllm import VllmBackend, VllmOptions
from parrot_engine.backends.vllm.link import VllmLink, model_info
from parrot_engine.backends.vllm.wire import Errand
from parrot_engine.models import ModelFolder
from parrot_kernels import vllm_backend
from parrot_kernels.vllm_backend.tree import Tree

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    # Sockets of engines that other modules stopped are left to the collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PROMPT = list(range(1000, 1200))
PLATFORM_TAKES = """
import pickle, sys
named = pickle.loads(bytes.fromhex(sys.argv[1]))
import torch
from vllm.platforms import current_platform
from vllm.v1.attention.selector import AttentionSelectorConfig
config = AttentionSelectorConfig(64, torch.float32, "auto", 32)
print(named.name, current_platform.get_attn_backend_cls(named, config))
"""
"""Which attention a process takes that has read a configuration."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[InProcessEngine]:
    made = InProcessEngine(folder, kv_bytes(200), contexts=True, attention="parrot")
    yield made
    made.close()


def chosen(backend: Any, **asked: Any) -> str:
    from vllm.platforms.cpu import CpuPlatform
    from vllm.v1.attention.selector import AttentionSelectorConfig

    config = AttentionSelectorConfig(64, torch.float32, "auto", 32, **asked)
    return str(CpuPlatform.get_attn_backend_cls(backend, config))


def test_only_who_asks_for_the_backend_gets_it() -> None:
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    plain = AttentionBackendEnum.CPU_ATTN
    others = (None, plain, AttentionBackendEnum.FLASH_ATTN)
    vllm_backend.register()
    vllm_backend.register()
    own = vllm_backend.offer()
    assert own is AttentionBackendEnum[vllm_backend.NAME]
    assert [chosen(other) for other in others] == [plain.get_path()] * 3
    assert own.get_class().get_name() == vllm_backend.NAME
    assert chosen(own) == own.get_path()
    assert chosen(own, use_mla=True) == chosen(None, use_mla=True) != own.get_path()


def test_a_process_without_plugins_takes_the_backend_that_a_configuration_names(
    engine: InProcessEngine,
) -> None:
    named = pickle.dumps(engine.core.vllm_config.attention_config.backend)
    environment = {**os.environ, "VLLM_PLUGINS": ""}
    command = [sys.executable, "-c", PLATFORM_TAKES, named.hex()]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [vllm_backend.NAME, "parrot_kernels.vllm_backend.cpu.ParrotCpuBackend"]


@pytest.mark.parametrize("error", [ImportError, AttributeError, KeyError, TypeError, ValueError])
def test_a_vllm_that_the_plugin_does_not_suit_goes_on_without_and_is_told_once(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from vllm.platforms.cpu import CpuPlatform

    def unlike(self: object) -> bool:
        raise error("is_cpu")

    monkeypatch.setattr(CpuPlatform, "is_cpu", unlike)
    vllm_backend.register()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"not offered PARROT: {error.__name__}" in caplog.text
    with pytest.raises(error):
        vllm_backend.offer()


@pytest.fixture(scope="module")
def uncompiled(folder: Path, engine: InProcessEngine) -> Iterator[tuple[InProcessEngine, list[str]]]:
    """An engine where there is no compiler, and what was logged when it began."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("parrot_kernels.vllm_backend.cpu.unavailable", lambda: "there is no C++ compiler")
        patched.setattr("parrot_kernels.vllm_backend.cpu.log.handlers", [handler])
        made = InProcessEngine(folder, kv_bytes(100), contexts=True, attention="parrot")
    yield made, lines
    # Not before the others are done: what it closes is theirs too.
    made.close()


def test_where_nothing_was_compiled_vllms_own_attention_is_used_and_said_once(
    engine: InProcessEngine, uncompiled: tuple[InProcessEngine, list[str]]
) -> None:
    other, lines = uncompiled
    assert len(lines) == 1
    assert "own attention is used instead" in lines[0]
    assert "no C++ compiler" in lines[0]
    assert other.core.parrot_attention() == "CPU_ATTN"
    assert other.core.scheduler.forest is None
    outputs = [each.generate([PROMPT], 8, [Errand("c")])[0].outputs[0].token_ids for each in (engine, other)]
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize(
    ("unlike", "why"),
    [
        ({"attn_type": "encoder"}, "kind encoder"),
        ({"sliding_window": 128}, "sliding window"),
        ({"alibi_slopes": torch.ones(2)}, "ALiBi"),
        ({"logits_soft_cap": 30.0}, "soft cap"),
        ({"sinks": torch.ones(2)}, "sinks"),
        ({"is_fp8_kv_cache": True, "kv_cache_dtype": "fp8"}, "KV in fp8"),
        ({}, ""),
    ],
)
def test_what_the_kernel_can_not_do_is_named(
    engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch, unlike: dict[str, Any], why: str
) -> None:
    planner = builder(engine)
    layers = planner.vllm_config.compilation_config.static_forward_context
    impl = layers[planner.layer_names[-1]].impl
    for name, value in unlike.items():
        monkeypatch.setattr(impl, name, value)
    assert why in planner._unfit()
    assert bool(planner._unfit()) == bool(why)


@pytest.mark.parametrize(("name", "value"), [("isa", "neon"), ("head_dim", 80), ("is_cross_attention", True)])
def test_kv_that_the_kernel_can_not_read_is_named(
    engine: InProcessEngine, monkeypatch: pytest.MonkeyPatch, name: str, value: Any
) -> None:
    assert not builder(engine)._unfit()
    monkeypatch.setattr(builder(engine), name, value)
    assert builder(engine)._unfit()


def batch(counts: list[int], lengths: list[int], **more: Any) -> Any:
    """vLLM's description of a batch whose rows have blocks of their own."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    starts = torch.from_numpy(np.cumsum([0, *counts], dtype=np.int32))
    rows, total = len(counts), sum(counts)
    return CommonAttentionMetadata(
        query_start_loc=starts,
        query_start_loc_cpu=starts,
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        num_reqs=rows,
        num_actual_tokens=total,
        max_query_len=max(counts),
        max_seq_len=max(lengths),
        block_table_tensor=torch.arange(rows * 8, dtype=torch.int32).reshape(rows, 8),
        slot_mapping=torch.zeros(total, dtype=torch.int64),
        **more,
    )


def test_rows_that_pad_the_batch_and_rows_that_prefill_are_not_the_kernels(engine: InProcessEngine) -> None:
    made = builder(engine).build(0, batch([1, 1, 0, 0], [40, 70, 0, 0]))
    assert (made.rows, made.rest) == (2, None)
    assert len(made.plan.partial_begin) == 3
    made = builder(engine).build(0, batch([1, 1, 5, 0], [40, 70, 90, 0]))
    assert made.rows == 2
    assert made.rest.num_actual_tokens == 5
    assert made.rest.query_start_loc.tolist() == [0, 5, 5]
    assert made.rest.seq_lens.tolist() == [90, 0]
    assert made.rest.block_table[0].tolist() == list(range(16, 24))


def test_a_layer_keeps_no_kv_memory_alive(engine: InProcessEngine) -> None:
    planner = builder(engine)
    layer = planner.vllm_config.compilation_config.static_forward_context[planner.layer_names[0]]
    memory = torch.zeros_like(layer.kv_cache[:16])
    held = weakref.ref(memory.untyped_storage())
    query = torch.zeros(2, planner.num_heads, planner.head_dim, dtype=memory.dtype)
    step = planner.build(0, batch([1, 1], [40, 70]))
    layer.impl.forward(layer, query, None, None, memory, step, torch.empty_like(query))
    assert held() is not None
    del memory
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("more", [{"causal": False}, {"causal": torch.ones(2, dtype=torch.bool)}])
def test_attention_that_is_not_causal_is_vllms(
    engine: InProcessEngine, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert builder(engine)._decode_rows(batch([1, 1], [40, 70])) == 2
    assert builder(engine)._decode_rows(batch([1, 1], [40, 70], **more)) == 0


def test_a_tree_that_is_not_the_batchs_changes_nothing(engine: InProcessEngine) -> None:
    planner, common = builder(engine), batch([1, 1, 1], [64, 64, 64])
    plain = planner.build(0, common).plan.items.copy()
    trees = [
        Tree(("a", "b", "c"), np.array([0, 2, 0], np.int32)),
        Tree(("a", "a", "c"), np.zeros(3, np.int32)),
        Tree(("a", "b", "x"), np.zeros(3, np.int32)),
        Tree(("a", "b"), np.zeros(2, np.int32)),
    ]
    with watched(planner) as done:
        for tree in trees:
            planner.tree.tell(tree, {"a": 0, "b": 1, "c": 2})
            assert np.array_equal(planner.build(0, common).plan.items, plain)
        assert done.known_trees == 0
        planner.tree.tell(Tree(("c", "a", "b"), np.zeros(3, np.int32)), {"a": 0, "b": 1, "c": 2})
        planner.build(0, common)
        assert done.known_trees == 1
    planner.tree.tell(None, {})


@pytest.mark.anyio
async def test_an_engine_says_which_attention_runs_and_not_which_was_asked_for(
    engine: InProcessEngine, uncompiled: tuple[InProcessEngine, list[str]]
) -> None:
    said = []
    for core in (engine.core, uncompiled[0].core):

        async def call(name: str, core: Any = core) -> str:
            return str(getattr(core, name)())

        config = core.vllm_config
        asked = model_info(VllmOptions("tiny", Path()), ModelFolder(Path(), "tiny"), config)
        link = VllmLink(
            SimpleNamespace(vllm_config=config, engine_core=SimpleNamespace(call_utility_async=call)), asked
        )
        await link.look()
        said.append((asked.attention, link.info.attention))
    assert said == [("PARROT", "PARROT"), ("PARROT", "CPU_ATTN")]


@pytest.mark.anyio
async def test_an_engine_of_its_own_process_takes_the_name_in_any_case(
    folder: Path, engine: InProcessEngine
) -> None:
    options = VllmOptions(
        str(folder), folder, dtype="float32", kv_cache_bytes=kv_bytes(100), attention="parrot"
    )
    backend = VllmBackend(options)
    with warnings.catch_warnings():
        # What vLLM and torch deprecate among themselves is not ours to mend.
        warnings.simplefilter("ignore")
        await backend.start()
        assert backend.info.attention == vllm_backend.NAME
        steps = await generate(
            backend, await context(backend, PROMPT), Sampling(max_tokens=8, ignore_eos=True)
        )
        await backend.stop()
    name = engine.submit(PROMPT, 8, Errand("again"))
    engine.run()
    assert tokens_of(steps) == tokens(engine, [name])[0]
