"""vLLM's GPU backend over the real kernels: on a GPU, or in Triton's interpreter, in a process of its own.

What is vLLM's is real: its metadata, its builder, its block tables. FlashAttention itself, which runs on
GPUs alone, is said in float64 in its place, from the metadata that it is given.
"""

from __future__ import annotations

import gc
import random
import weakref
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.support.forests import Forest, random_forest
from vllm import _custom_ops as ops
from vllm.config.compilation import CUDAGraphMode
from vllm.model_executor.layers.attention import Attention
from vllm.v1.attention.backend import AttentionCGSupport, CommonAttentionMetadata
from vllm.v1.attention.backends import flash_attn
from vllm.v1.attention.backends.flash_attn import FlashAttentionImpl, FlashAttentionMetadata
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.block_table import BlockTables

from parrot_kernels.reference import attention
from parrot_kernels.vllm_backend.gpu import ParrotGpuBackend, ParrotGpuImpl, ParrotGpuMetadata

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16
BOUND = 3e-2 if DEVICE.type == "cuda" else 4e-3
HEADS, KV_HEADS, SIZE = 4, 2, 64
ROWS = 12
SCALE = SIZE**-0.5
BLOCKS = 256
"""Of the KV memory: more than any batch here has."""
LAYER = SimpleNamespace(_k_scale_float=1.0, _v_scale_float=1.0)


@pytest.fixture(autouse=True)
def _plain_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    if DEVICE.type != "cuda":
        monkeypatch.setattr(buffer_utils, "is_uva_available", lambda: False)


def settings(**changed: Any) -> Any:
    """As much of a `VllmConfig` as the builders read."""
    model = SimpleNamespace(
        hf_config=SimpleNamespace(model_type="llama"),
        dtype=DTYPE,
        rswa_window=None,
        is_mm_prefix_lm=False,
        get_num_attention_heads=lambda parallel: HEADS,
    )
    parallel = SimpleNamespace(
        decode_context_parallel_size=1, prefill_context_parallel_size=1, cp_kv_cache_interleave_size=1
    )
    compilation = SimpleNamespace(
        cudagraph_mode=CUDAGraphMode.NONE, max_cudagraph_capture_size=ROWS, static_forward_context={}
    )
    made = {
        "model_config": model,
        "parallel_config": parallel,
        "compilation_config": compilation,
        "cache_config": SimpleNamespace(cache_dtype="auto", kv_sharing_fast_prefill=False),
        "attention_config": SimpleNamespace(flash_attn_max_num_splits_for_cuda_graph=32),
        "scheduler_config": SimpleNamespace(max_num_seqs=ROWS, max_num_batched_tokens=512),
        "kernel_config": SimpleNamespace(enable_jit_warmup=False),
        "speculative_config": None,
        "num_speculative_tokens": 0,
    }
    return SimpleNamespace(**(made | changed))


def builder(block: int, config: Any = None) -> Any:
    spec = FullAttentionSpec(block_size=block, num_kv_heads=KV_HEADS, head_size=SIZE, dtype=DTYPE)
    return ParrotGpuBackend.get_builder_cls()(spec, ["layer"], config or settings(), DEVICE)


def layer() -> ParrotGpuImpl:
    made = ParrotGpuBackend.get_impl_cls()(HEADS, SIZE, SCALE, KV_HEADS, None, None, "auto")
    assert isinstance(made, ParrotGpuImpl)
    return made


@dataclass
class Step:
    """A batch as the model runner has it: rows with their queries' lengths, tables, and KV memory.

    Attributes:
        padded: rows and tokens of the graph it runs in, where it runs in one.
    """

    forest: Forest
    query_lens: list[int]
    tables: Any
    padded: int = 0
    known: bool = True

    def __post_init__(self) -> None:
        self.rows, block = len(self.query_lens), self.forest.block_tokens
        for row, length in enumerate(self.forest.lengths.tolist()):
            blocks = self.forest.tables[row, : -(-length // block)].tolist()
            self.tables.append_block_ids(row, (blocks,), overwrite=True)
        staged = self.tables.block_tables[0]
        staged.clear_staged_writes()
        # The runner gathers the batch's rows, and clears those that pad a graph.
        width = self.forest.tables.shape[1]
        self.device_tables = self.tables.input_block_tables[0]
        self.device_tables.zero_()
        self.device_tables[: self.rows, :width] = torch.from_numpy(self.forest.tables)
        if not self.known:
            self.device_tables = self.device_tables.clone()

    @property
    def common(self) -> CommonAttentionMetadata:
        rows = max(self.rows, self.padded)
        starts = np.full(rows + 1, sum(self.query_lens), np.int32)
        starts[: self.rows + 1] = np.cumsum([0, *self.query_lens])
        lengths = np.zeros(rows, np.int32)
        lengths[: self.rows] = self.forest.lengths
        tokens = max(int(starts[-1]), self.padded)
        return CommonAttentionMetadata(
            query_start_loc=torch.from_numpy(starts).to(DEVICE),
            query_start_loc_cpu=torch.from_numpy(starts),
            seq_lens=torch.from_numpy(lengths).to(DEVICE),
            num_reqs=rows,
            num_actual_tokens=tokens,
            max_query_len=max(self.query_lens),
            max_seq_len=int(lengths.max()),
            block_table_tensor=self.device_tables[:rows],
            slot_mapping=torch.zeros(tokens, dtype=torch.int64, device=DEVICE),
            seq_lens_cpu_upper_bound=torch.from_numpy(lengths),
            req_idx=np.arange(self.rows),
        )

    def expected(self, query: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        """Every token's attention in float64: each sees what is before it, and itself."""
        return said(query, memory, self.query_lens, self.forest.lengths.tolist(), self.forest.tables)


def said(
    query: torch.Tensor, memory: torch.Tensor, query_lens: list[int], lengths: list[int], tables: np.ndarray
) -> torch.Tensor:
    keys, values = memory.cpu().float().transpose(1, 2).chunk(2, -1)
    seen: list[int] = []
    whose: list[int] = []
    for row, (count, length) in enumerate(zip(query_lens, lengths, strict=True)):
        seen += range(length - count + 1, length + 1)
        whose += [row] * count
    found = attention(
        query[: len(seen)].cpu().float().numpy(),
        (keys.numpy(), values.numpy()),
        [tables[row].tolist() for row in whose],
        seen,
        SCALE,
    )
    return torch.from_numpy(found)


@pytest.fixture
def flash(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """FlashAttention in float64; how many rows it was given, each time."""
    calls: list[int] = []

    def forward(self: Any, layer: Any, query: torch.Tensor, *given: Any) -> torch.Tensor:
        _, _, kv_cache, step, output, *_ = given
        assert isinstance(step, FlashAttentionMetadata)
        assert not isinstance(step, ParrotGpuMetadata)
        starts = step.query_start_loc.cpu()
        assert starts[0] == 0
        query_lens = starts.diff().tolist()
        found = said(query, kv_cache, query_lens, step.seq_lens.tolist(), step.block_table.cpu().numpy())
        output[: len(found)] = found.to(output)
        calls.append(len(query_lens))
        return torch.as_tensor(output)

    monkeypatch.setattr(FlashAttentionImpl, "forward", forward)
    return calls


def random_step(source: random.Random, block: int, *, decode: int, prefill: int, **more: Any) -> Step:
    """Decode rows in front, then rows of several query tokens."""
    forest = random_forest(source, decode + prefill, block)
    # Blocks by numbers without gaps: the memory need not be large.
    numbers, tables = np.unique(forest.tables, return_inverse=True)
    compact = tables.reshape(forest.tables.shape).astype(np.int32)
    lengths = np.maximum(forest.lengths, 1)
    forest = Forest(compact, lengths, block, len(numbers))
    query_lens = [1] * decode
    query_lens += [source.randint(min(2, length), min(length, 7)) for length in lengths[decode:].tolist()]
    width = forest.tables.shape[1] + 3
    kept = more.pop("tables", None) or BlockTables([block], ROWS, 512, [width + 40], DEVICE)
    return Step(forest, query_lens, kept, **more)


def memory_of(source: random.Random, block: int) -> torch.Tensor:
    """Blocks x heads x tokens x (key and value), as vLLM hands it to a layer."""
    generator = torch.Generator().manual_seed(source.randrange(1 << 30))
    plain = torch.randn(BLOCKS, block, KV_HEADS, 2 * SIZE, generator=generator).to(DTYPE)
    return plain.to(DEVICE).transpose(1, 2)


def queries(tokens: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randn(tokens, HEADS, SIZE, generator=generator).to(DTYPE).to(DEVICE)


def run(impl: ParrotGpuImpl, step: Any, query: torch.Tensor, memory: torch.Tensor, out: torch.Tensor) -> None:
    impl.forward(LAYER, query, None, None, memory, step, out)  # type: ignore[arg-type]


def check(step: Step, query: torch.Tensor, memory: torch.Tensor, out: torch.Tensor) -> None:
    expected = step.expected(query, memory)
    tokens = len(expected)
    assert (out[:tokens].cpu().double() - expected).abs().max() < BOUND
    assert torch.isnan(out[tokens:].float()).all()


@pytest.mark.parametrize("block", [16, 64])
@pytest.mark.parametrize(("decode", "prefill"), [(7, 0), (5, 3), (1, 1), (0, 4)])
def test_decode_rows_are_the_kernels_and_the_rest_flash_attentions(
    block: int, decode: int, prefill: int, flash: list[int]
) -> None:
    source = random.Random(100 * block + decode)
    step, memory = random_step(source, block, decode=decode, prefill=prefill), memory_of(source, block)
    built = builder(block)
    metadata = built.build(0, step.common)
    tokens = sum(step.query_lens)
    query, out = queries(tokens), torch.full((tokens, HEADS, SIZE), torch.nan, dtype=DTYPE, device=DEVICE)
    run(layer(), metadata, query, memory, out)
    check(step, query, memory, out)
    assert flash == ([prefill] if prefill else [])
    assert built.steps.counts.rows == decode
    assert not built.steps.counts.apart


def test_one_graph_serves_every_batch_that_is_built_after_it(flash: list[int]) -> None:
    source, block = random.Random(3), 16
    memory, built, impl = memory_of(source, block), builder(block), layer()
    tables = BlockTables([block], ROWS, 512, [64], DEVICE)
    query = queries(ROWS)
    out = torch.full((ROWS, HEADS, SIZE), torch.nan, dtype=DTYPE, device=DEVICE)
    whole = random_step(source, block, decode=ROWS, prefill=0, tables=tables, padded=ROWS)
    captured = built.build_for_cudagraph_capture(whole.common)
    for decode in (ROWS, 5, 9, 1):
        step = random_step(source, block, decode=decode, prefill=0, tables=tables, padded=ROWS)
        # Rows that pad a graph are nobody's.
        assert built.build(0, step.common).rest is None
        out.fill_(torch.nan)
        # What a graph replays is what was captured, over what is loaded.
        run(impl, captured, query, memory, out)
        check(step, query, memory, out)
    assert not flash


def test_a_layer_keeps_no_kv_memory_alive() -> None:
    """vLLM tries graphs with a memory that it frees before it takes the real one."""
    source, impl, built = random.Random(4), layer(), builder(64)
    step = random_step(source, 64, decode=3, prefill=0)
    memory, out = memory_of(source, 64), torch.empty((3, HEADS, SIZE), dtype=DTYPE, device=DEVICE)
    held = weakref.ref(memory.untyped_storage())
    run(impl, built.build(0, step.common), queries(3), memory, out)
    assert held() is not None
    del memory
    gc.collect()
    assert held() is None


def shared_step(known: bool) -> Step:
    """Rows with one prefix."""
    block, rows, prefix = 16, 6, 24
    own = np.arange(rows, dtype=np.int32)[:, None] + 100
    tables = np.hstack([np.tile(np.arange(1, prefix + 1, dtype=np.int32), (rows, 1)), own])
    forest = Forest(tables, np.full(rows, prefix * block + 3, np.int32), block, 200)
    return Step(forest, [1] * rows, BlockTables([block], ROWS, 512, [64], DEVICE), known=known)


@pytest.mark.parametrize("known", [True, False])
def test_prefixes_are_read_once_where_tables_are_known_and_outputs_are_right_anyway(
    known: bool, flash: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    step, memory, built = shared_step(known), memory_of(random.Random(2), 16), builder(16)
    query, out = queries(6), torch.full((6, HEADS, SIZE), torch.nan, dtype=DTYPE, device=DEVICE)
    for _ in range(2):
        run(layer(), built.build(0, step.common), query, memory, out)
    check(step, query, memory, out)
    counts = built.steps.counts
    assert (counts.shared_items > 0, counts.apart > 0) == (known, not known)
    assert len([line for line in caplog.messages if "aren't known" in line]) == (not known)


def test_what_is_not_a_plain_decode_step_is_flash_attentions() -> None:
    step, built = shared_step(known=True), builder(16)
    for common, fast in (
        (step.common.replace(causal=False), False),
        (step.common.replace(seq_lens_cpu_upper_bound=None), False),
        (step.common, True),
    ):
        metadata = built.build(0, common, fast_build=fast)
        assert type(metadata) is FlashAttentionMetadata
        assert metadata.seq_lens is common.seq_lens


def test_once_a_graph_is_captured_no_step_goes_by_without_a_plan() -> None:
    step, built = shared_step(known=True), builder(16)
    built.build_for_cudagraph_capture(step.common)
    for common in (step.common.replace(causal=False), step.common.replace(seq_lens_cpu_upper_bound=None)):
        with pytest.raises(RuntimeError, match="FLASH_ATTN"):
            built.build(0, common)


def test_a_model_that_is_not_served_is_flash_attentions_and_the_log_says_why(
    flash: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    impl = ParrotGpuImpl(HEADS, SIZE, SCALE, KV_HEADS, None, 512, "auto")
    windowed = Attention.__new__(Attention)
    torch.nn.Module.__init__(windowed)
    windowed.impl = impl
    windowed.num_heads = HEADS
    config = settings()
    config.compilation_config.static_forward_context = {"layer": windowed}
    built = builder(16, config)
    assert built.steps is None
    assert [line for line in caplog.messages if "a sliding window" in line]
    step, memory = shared_step(known=True), memory_of(random.Random(2), 16)
    query, out = queries(6), torch.full((6, HEADS, SIZE), torch.nan, dtype=DTYPE, device=DEVICE)
    run(impl, built.build(0, step.common), query, memory, out)
    check(step, query, memory, out)
    assert flash == [6]


def test_heads_there_is_no_kernel_for_are_flash_attentions(caplog: pytest.LogCaptureFixture) -> None:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=KV_HEADS, head_size=80, dtype=DTYPE)
    built = ParrotGpuBackend.get_builder_cls()(spec, ["layer"], settings(), DEVICE)
    assert built.steps is None
    assert [line for line in caplog.messages if "heads of 80 dims" in line]


def test_graphs_hold_decode_steps_alone_unless_flash_attention_does_everything() -> None:
    spec = FullAttentionSpec(block_size=16, num_kv_heads=KV_HEADS, head_size=SIZE, dtype=DTYPE)
    kind = ParrotGpuBackend.get_builder_cls()
    own = flash_attn.FlashAttentionMetadataBuilder.get_cudagraph_support(settings(), spec)
    assert kind.get_cudagraph_support(settings(), spec) is AttentionCGSupport.UNIFORM_SINGLE_TOKEN_DECODE
    assert kind.get_cudagraph_support(settings(num_speculative_tokens=2), spec) is own
    assert not kind.supports_update_block_table


def test_a_builder_that_vllm_derives_is_flash_attentions(caplog: pytest.LogCaptureFixture) -> None:
    kind = ParrotGpuBackend.get_builder_cls()
    derived: Any = type("ChunkedBuilder", (kind,), {})
    spec = FullAttentionSpec(block_size=16, num_kv_heads=KV_HEADS, head_size=SIZE, dtype=DTYPE)
    assert derived(spec, ["layer"], settings(), DEVICE).steps is None
    assert [line for line in caplog.messages if "ChunkedBuilder" in line]
    own = flash_attn.FlashAttentionMetadataBuilder.get_cudagraph_support(settings(), spec)
    assert derived.get_cudagraph_support(settings(), spec) is own


def test_what_is_drafted_ahead_is_flash_attentions() -> None:
    assert builder(16, settings(num_speculative_tokens=2)).steps is None


def test_blocks_are_asked_for_that_can_be_read_in_boxes() -> None:
    assert ParrotGpuBackend.get_preferred_block_size(16) == 64
    assert ParrotGpuBackend.get_preferred_block_size(128) == 128
    assert ParrotGpuBackend.get_name() == "PARROT"
    assert not ParrotGpuBackend.supports_device_cpu_query_lens_mismatch()


def test_queries_are_put_in_eight_bits_for_flash_attention_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flash_attn, "flash_attn_supports_kv_cache_dtype", lambda *_, **__: True)
    monkeypatch.setattr(flash_attn, "flash_attn_supports_quant_query_input", lambda: True)
    impl = ParrotGpuImpl(HEADS, SIZE, SCALE, KV_HEADS, None, None, "fp8")
    # vLLM then leaves them as they are.
    assert not impl.supports_quant_query_input
    given: list[torch.Tensor] = []

    def quantised(flat: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (flat.float() / scale).to(torch.float8_e4m3fn), scale

    def forward(self: Any, layer: Any, query: torch.Tensor, *_: Any) -> torch.Tensor:
        given.append(query)
        return query

    monkeypatch.setattr(ops, "scaled_fp8_quant", quantised)
    monkeypatch.setattr(FlashAttentionImpl, "forward", forward)
    query = queries(3)
    quant = SimpleNamespace(_q_scale=torch.tensor(0.5))
    impl.forward(quant, query, None, None, None, None, torch.empty_like(query))  # type: ignore[arg-type]
    assert given[0].dtype == torch.float8_e4m3fn
    assert given[0].shape == query.shape
    assert (given[0].float() * 0.5 - query.float()).abs().max() < 0.3


def test_an_output_that_is_to_be_quantised_is_refused() -> None:
    step, built = shared_step(known=True), builder(16)
    metadata = built.build(0, step.common)
    query = queries(6)
    with pytest.raises(NotImplementedError, match="quantise"):
        layer().forward(
            LAYER, query, query, query, memory_of(random.Random(1), 16), metadata, query, torch.ones(1)
        )
