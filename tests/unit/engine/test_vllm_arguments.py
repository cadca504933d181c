"""What vLLM is started with, on CPU and on GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parrot_engine.backends.base import BackendError
from parrot_engine.backends.vllm.arguments import (
    check_invariance,
    check_libraries,
    engine_arguments,
    environment,
    scheduler,
    sequences,
)
from parrot_engine.backends.vllm.options import VllmOptions

FOLDER = Path("/models/some")


def options(**more: Any) -> VllmOptions:
    return VllmOptions(model="some", cache_dir=Path("/cache"), **more)


def arguments(*, on_cpu: bool, **more: Any) -> dict[str, Any]:
    return engine_arguments(options(**more), FOLDER, "some", on_cpu=on_cpu)


def test_on_cpu_memory_is_counted_in_bytes_and_nothing_is_compiled() -> None:
    made = arguments(on_cpu=True, kv_cache_bytes=1 << 28)
    assert made["kv_cache_memory_bytes"] == 1 << 28
    assert made["enforce_eager"] is True
    assert made["block_size"] % 32 == 0
    assert made["distributed_executor_backend"] == "uni"
    assert "gpu_memory_utilization" not in made
    assert "max_model_len" not in made


def test_two_gpus_share_a_model_and_take_the_share_of_memory_that_is_given() -> None:
    made = arguments(
        on_cpu=False,
        tensor_parallel_size=2,
        kv_cache_bytes=0,
        gpu_memory_utilization=0.8,
        attention="FLASH_ATTN",
        context_window_tokens=4096,
    )
    assert made["tensor_parallel_size"] == 2
    assert made["distributed_executor_backend"] == "mp"
    assert made["gpu_memory_utilization"] == 0.8
    assert made["attention_backend"] == "FLASH_ATTN"
    assert made["max_model_len"] == 4096
    assert made["enforce_eager"] is False
    assert not {"kv_cache_memory_bytes", "worker_cls", "block_size"} & made.keys()


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("name", ["parrot", "PARROT", "Parrot"])
def test_our_own_attention_is_asked_for_in_any_case(name: str, on_cpu: bool) -> None:
    assert arguments(on_cpu=on_cpu, attention=name)["attention_backend"] == "PARROT"


def test_who_asks_for_no_attention_gets_vllms() -> None:
    assert arguments(on_cpu=True)["attention_backend"] == "CPU_ATTN"
    assert "attention_backend" not in arguments(on_cpu=False)


def test_kv_bytes_that_are_given_count_on_a_gpu_too() -> None:
    assert arguments(on_cpu=False, kv_cache_bytes=1 << 30)["kv_cache_memory_bytes"] == 1 << 30


@pytest.mark.parametrize("on_cpu", [True, False])
def test_fills_have_room_beside_as_many_outputs_as_are_promised(on_cpu: bool) -> None:
    for capacity in (1, 7, 64):
        made = arguments(on_cpu=on_cpu, capacity=capacity)
        assert made["max_num_seqs"] == sequences(options(capacity=capacity)) > capacity
        assert made["scheduling_policy"] == "priority"
        assert made["enable_prefix_caching"] is True


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"tensor_parallel_size": 2}, "tensor_parallel_size"),
        ({"attention": "FLASH_ATTN"}, "FLASH_ATTN"),
        ({"kv_cache_bytes": 0}, "kv_cache_bytes"),
    ],
)
def test_what_a_cpu_can_not_do_is_refused_by_name(more: dict[str, Any], what: str) -> None:
    with pytest.raises(BackendError, match=what):
        arguments(on_cpu=True, **more)


@pytest.mark.parametrize("capability", [None, (8, 6)])
def test_outputs_can_not_be_kept_apart_from_the_batch_without_the_kernels_for_it(
    capability: tuple[int, int] | None,
) -> None:
    check_invariance(options(), capability)
    with pytest.raises(BackendError, match=r"9\.0"):
        check_invariance(options(batch_invariant=True), capability)


def test_a_gpu_that_can_keep_outputs_apart_from_the_batch_is_told_to() -> None:
    check_invariance(options(batch_invariant=True), (9, 0))
    assert environment(options(batch_invariant=True))["VLLM_BATCH_INVARIANT"] == "1"
    assert environment(options())["VLLM_BATCH_INVARIANT"] == "0"


def test_the_scheduler_suits_how_vllm_runs_its_steps() -> None:
    assert scheduler(async_scheduling=True).endswith(".AsyncContextScheduler")
    assert scheduler(async_scheduling=False).endswith(".ContextScheduler")


@pytest.mark.parametrize(("compiler", "disabled"), [("/usr/bin/g++", False), (None, True)])
def test_without_a_compiler_nothing_is_compiled(
    monkeypatch: pytest.MonkeyPatch, compiler: str | None, disabled: bool
) -> None:
    monkeypatch.setattr("shutil.which", lambda name: compiler)
    assert ("TORCHDYNAMO_DISABLE" in environment(options())) is disabled


def test_a_library_that_kernels_need_and_the_system_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "parrot_engine.backends.vllm.arguments.CPU_LIBRARY"
    monkeypatch.setattr(place, "libno-such-thing.so.1")
    with pytest.raises(BackendError, match=r"need libno-such-thing\.so\.1.*apt-get install"):
        check_libraries()
