"""What a benchmark needs of a system, and what it learns from it."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from parrot_bench.graphs import Application, Call

Say = Callable[[str], None]
"""Tells people, in a line, what is being waited for."""


class Unavailable(Exception):
    """A system can't run here; its text says why, and how to mend that."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What every system of one benchmark gets: the same model, on engines set alike.

    Attributes:
        folder: for logs and data, one a system; it exists.
        model: "smollm2", the packaged one, or a Hugging Face model's folder.
        backend: vllm; sim: engines that cost nothing, to try the benchmark itself.
        dtype: the model's arithmetic, as vLLM names it.
        engines: how many there are.
        threads: of each engine's arithmetic; 0: the cores, shared among the engines.
        capacity: of each Parrot engine, programs at once.
        step_tokens: tokens an engine step works on at most.
        kv_cache_mib: of each engine.
        rtt_ms: between the client and every server, there and back; see `parrot_bench.network`.
        url: a Parrot server that runs already; empty: one is started.
        endpoints: OpenAI-compatible servers that run already, http://host:port/v1, one an engine; empty: as
            many are started.
        served_model: the model's name at those endpoints; empty: the first that they list.
        environment: settings of Parrot's services on top, by their PARROT_ names.
    """

    folder: Path
    model: str = "smollm2"
    backend: Literal["vllm", "sim"] = "vllm"
    dtype: str = "bfloat16"
    engines: int = 1
    threads: int = 0
    capacity: int = 0
    step_tokens: int = 512
    kv_cache_mib: int = 1024
    rtt_ms: float = 0.0
    url: str = ""
    endpoints: tuple[str, ...] = ()
    served_model: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def engine_threads(self) -> int:
        """Threads of each engine, whatever stands for it."""
        return self.threads or max(1, len(os.sched_getaffinity(0)) // self.engines)


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """One call, as it went. Times are milliseconds since its application was begun.

    Attributes:
        start_ms: when the system began to work on it: it was sent, or taken in by the server.
        first_ms: its first token was there; with the client where it reads the stream. None: it is not known.
        end_ms: it was whole.
        prompt_tokens: as the server counted them; 0: it does not say.
        cached_tokens: those of them whose KV was there already; None: it does not say.
        engine: which one it ran on, by number or name; empty: it is not known.
    """

    name: str
    start_ms: float
    first_ms: float | None
    end_ms: float
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None = None
    engine: str = ""

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token, the first left out; None where it has no meaning."""
        if self.first_ms is None or self.output_tokens < 2:
            return None
        return (self.end_ms - self.first_ms) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Outcome:
    """One application, as it went.

    Attributes:
        e2e_ms: from its arrival at the system to its last final output, whole, with the client.
        error: what failed, in a line; empty: nothing. Times of a failed application are not to be used.
        outputs: the finals' texts, by call.
    """

    application: str
    e2e_ms: float
    calls: tuple[CallOutcome, ...] = ()
    error: str = ""
    outputs: Mapping[str, str] = field(default_factory=dict)


class System(ABC):
    """Something that runs applications.

    `run` may be called many times at once. Its caller waits for an application's arrival; the system never
    sees one before.
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self.name = name
        self.settings = settings

    @abstractmethod
    async def start(self, say: Say) -> None:
        """Makes it ready; whatever it started is stopped again when this raises.

        Raises:
            Unavailable: it can't run here.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Stops what `start` started. Does nothing twice, or when nothing was started."""

    @abstractmethod
    async def run(self, application: Application) -> Outcome:
        """Runs one application to its end. What fails in it is in the outcome, and is not raised."""

    async def account(self, application: Application, outcome: Outcome) -> Outcome:
        """The outcome with what it takes more requests to learn, which others would have had to wait for.

        Called once after `run`, when all that is timed is over.
        """
        return outcome

    def pids(self) -> frozenset[int]:
        """The servers it started, their children left out; to see that they are idle while another is
        measured."""
        return frozenset()


def wrong_count(call: Call, output_tokens: int) -> str:
    """Why a call does not count that wrote another number of tokens than it was to; empty: it counts."""
    if output_tokens == call.output_tokens:
        return ""
    return f"call {call.name} wrote {output_tokens} tokens instead of {call.output_tokens}"
