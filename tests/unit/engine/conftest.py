"""Engines over a toy model, for tests of vLLM's scheduler."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
from tests.support.tiny_model import write_tiny_model
from tests.support.toy_engine import SEQUENCES, STEP_TOKENS, WINDOW, Make, ToyEngine

from parrot_engine.backends.vllm.arguments import environment
from parrot_engine.backends.vllm.options import VllmOptions

NULL = 1


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = write_tiny_model(tmp_path_factory.mktemp("tiny"))
    os.environ.update(environment(VllmOptions(model=str(folder), cache_dir=Path())))
    from vllm.engine.arg_utils import EngineArgs

    return EngineArgs(
        model=str(folder),
        dtype="float32",
        max_model_len=WINDOW,
        max_num_seqs=SEQUENCES,
        max_num_batched_tokens=STEP_TOKENS,
        kv_cache_memory_bytes=1 << 20,
        block_size=32,
        enforce_eager=True,
        scheduling_policy="priority",
        distributed_executor_backend="uni",
    ).create_engine_config()


@pytest.fixture(params=[False, True], ids=["in-step", "ahead"])
def make(request: pytest.FixtureRequest, config: Any) -> Make:
    """Makes engines with as many blocks of KV as wanted."""
    return lambda blocks: ToyEngine(copy.deepcopy(config), blocks + NULL, ahead=request.param)
