"""The interface of what computes: contexts that are filled, forked and generated from.

The three primitives are the paper's (Parrot, OSDI 2024, section 5.1): Fill, Generate, FreeContext.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from typing import Literal

from parrot_engine.text.tokens import PromptTokenizer

FinishReason = Literal["stop", "length", "stop_text"]
"""Why an output ended: the model ended it, it reached its length, or a stop text came."""


class BackendError(Exception):
    """The backend could not do what was asked; others are not touched by it."""


class ContextError(BackendError):
    """A context is not there, is in use, or is named with another parent than it has."""


class BackendDeadError(BackendError):
    """The backend can do nothing more; the process has to be replaced."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served, and how much of it at once."""

    model: str
    context_window_tokens: int
    backend: Literal["vllm", "sim"]
    version: str
    dtype: str
    kv_tokens: int
    block_tokens: int
    capacity: int
    tensor_parallel: int = 1


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an output is generated.

    Stop texts count only after `min_tokens`; the output ends before the first that does.

    Raises:
        ValueError: a setting is out of its range; names the setting.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name, holds, rule in (
            ("max_tokens", self.max_tokens >= 1, "at least 1"),
            ("min_tokens", 0 <= self.min_tokens <= self.max_tokens, "between 0 and max_tokens"),
            ("temperature", 0 <= self.temperature <= 2, "between 0 and 2"),
            ("top_p", 0 < self.top_p <= 1, "above 0 and at most 1"),
            ("top_k", self.top_k >= 0, "0 or more"),
            ("stop", all(self.stop), "texts that are not empty"),
        ):
            if not holds:
                raise ValueError(f"{name} must be {rule}")


@dataclass(frozen=True, slots=True)
class FillResult:
    """What a fill did: `context_tokens` is the context's length after it."""

    filled_tokens: int
    context_tokens: int


@dataclass(frozen=True, slots=True)
class Phases:
    """Where a generate's time went, in ms, one after the other from the moment it was asked for.

    Attributes:
        queue_ms: until its first step.
        prefill_ms: from its first step to its first token.
        decode_ms: from its first token to its last.
    """

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """What one engine step added to an output.

    Attributes:
        text: whole characters, possibly none; the texts of all steps together are the output.
        token_ids: what was generated, the token that ended the output included.
        prompt_tokens: length of the context that was generated from.
        cached_tokens: of `prompt_tokens`, those whose KV was already there.
        finish_reason: set in the last step, with `phases` and `context_tokens`.
        context_tokens: the context's length after the output.
    """

    text: str
    token_ids: Sequence[int]
    prompt_tokens: int
    cached_tokens: int
    finish_reason: FinishReason | None = None
    phases: Phases | None = None
    context_tokens: int = 0


@dataclass(frozen=True, slots=True)
class BackendStats:
    """How busy the backend is now."""

    running: int
    waiting: int
    contexts: int
    kv_used_fraction: float


class Backend(ABC):
    """A model, and contexts over it.

    Contexts. A context is a sequence of tokens under a name. A name that is not known makes one: a
    fork of `parent_context_id`, or an empty root when that is empty. A name that is known goes on
    with its context; its parent may be left out or repeated, not changed. After a generate, the
    context holds the output's text as tokens, without the token or stop text that ended it and
    without control tokens, as if the text had been filled.

    Locking. A context does one thing at a time: using it, forking it or freeing it while it is
    generated from raises `ContextError`. Different contexts, forks of one parent included, may be
    used all at once. A fork copies: what its parent does later does not show in it.

    Eviction. A context's tokens stay until `free_context`. Its KV is a cache: the backend keeps
    it as long as it can and computes it again when it could not, which changes times and
    `cached_tokens`, never the output. `free_context` of an unknown name does nothing.

    Cancelling. Closing the generator that `generate` returned, or cancelling the task that waits
    in it, takes the output out of the batch within one engine step; the context is then as it was
    before and can be freed.
    """

    @property
    @abstractmethod
    def info(self) -> ModelInfo:
        """What is served. Valid after `start`."""

    @property
    @abstractmethod
    def tokenizer(self) -> PromptTokenizer:
        """The model's tokenizer. Valid after `start`."""

    @abstractmethod
    async def start(self) -> None:
        """Loads the model; returns when it can generate.

        Raises:
            BackendError: the model can't be loaded; says why.
        """

    @abstractmethod
    async def stop(self) -> None:
        """Ends everything, what runs included. May be called after a failed `start`."""

    @abstractmethod
    async def fill(
        self, token_ids: Sequence[int], context_id: str, parent_context_id: str = ""
    ) -> FillResult:
        """Appends tokens to a context.

        Raises:
            ContextError: see above.
        """

    @abstractmethod
    def generate(
        self, sampling: Sampling, context_id: str, parent_context_id: str = ""
    ) -> AsyncGenerator[Step, None]:
        """Generates from a context; the last step has a finish reason.

        Prompt and output together must fit the window, which the caller has checked.

        Raises:
            ContextError: see above.
            BackendDeadError: the backend is gone.
            BackendError: it could not be generated.
        """

    @abstractmethod
    async def free_context(self, context_id: str) -> None:
        """Forgets a context.

        Raises:
            ContextError: it is in use.
        """

    @abstractmethod
    def stats(self) -> BackendStats:
        """How busy it is now."""

    @abstractmethod
    async def wait_dead(self) -> str:
        """Returns only when the backend can do nothing more, with the reason."""
