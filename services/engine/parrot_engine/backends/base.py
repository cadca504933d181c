"""The interface of what computes: contexts that are filled, forked and generated from.

The three primitives are the paper's (Parrot, OSDI 2024, section 5.1): Fill, Generate, FreeContext.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from parrot_engine.sampling import Sampling as Sampling  # noqa: PLC0414  (part of the interface)
from parrot_engine.text.tokens import PromptTokenizer

FinishReason = Literal["stop", "length", "stop_text"]
"""Why an output ended: the model ended it, it reached its length, or a stop text came."""

BackendKind = Literal["vllm", "sim", "openai", "sandbox"]


class BackendError(Exception):
    """The backend could not do what was asked; others are not touched by it."""


class ContextError(BackendError):
    """A context is not there, is in use, or is named with another parent or tenant than it has."""


class UnsupportedError(BackendError):
    """The backend has no means to do this, whatever the time; says what."""


class BackendDeadError(BackendError):
    """The backend can do nothing more; the process has to be replaced."""


class IntegrityError(BackendError):
    """The books of the KV memory do not add up: a bug, found before it is a leak."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What is served, with what, and how much of it at once.

    Attributes:
        kv_tokens: tokens whose KV the memory holds; 0: the backend holds none.
        capacity: outputs at once.
        attention: the attention kernel's name, as the backend calls it: on CPUs the one that runs, on GPUs
            the one that was asked for, which vLLM replaces where it can't do a model.
        batch_invariant: a prompt's tokens do not depend on what else is in the batch.
    """

    model: str
    context_window_tokens: int
    backend: BackendKind
    version: str
    dtype: str
    kv_tokens: int
    block_tokens: int
    capacity: int
    tensor_parallel: int = 1
    attention: str = ""
    batch_invariant: bool = False


@dataclass(frozen=True, slots=True)
class FillResult:
    """What a fill did.

    Attributes:
        context_tokens: the context's length after it.
        computed_tokens: tokens whose KV was computed for it, earlier lazy fills included.
        cached_tokens: tokens of the context whose KV was there before.
    """

    filled_tokens: int
    context_tokens: int
    computed_tokens: int = 0
    cached_tokens: int = 0


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
class TokenLogprobs:
    """One token and what else might have stood in its place.

    Attributes:
        logprob: natural logarithm of the probability before temperature and filters.
        top: the likeliest tokens with theirs, likeliest first; as many as were asked for.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


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
        logprobs: one for each of `token_ids`, when asked for.
        prompt_logprobs: in the first step, when asked for: one for each token of the prompt but the first.
    """

    text: str
    token_ids: Sequence[int]
    prompt_tokens: int
    cached_tokens: int
    finish_reason: FinishReason | None = None
    phases: Phases | None = None
    context_tokens: int = 0
    logprobs: Sequence[TokenLogprobs] = ()
    prompt_logprobs: Sequence[TokenLogprobs] = ()


@dataclass(frozen=True, slots=True)
class BackendStats:
    """How busy the backend is now.

    Attributes:
        running: outputs and fills in the batch; `waiting`: those that are not yet.
        held_tokens: tokens whose KV is held for contexts, shared ones once.
        free_tokens: tokens the KV memory could still take without letting go of what is held.
        step_ms: time of a step that only decodes, lately; 0: none yet.
        token_ms: by how much a token that is prefilled makes such a step longer; 0: it is not known.
        piece_token_ms: the same of a token of a small piece.
    """

    running: int
    waiting: int
    contexts: int
    kv_used_fraction: float
    held_tokens: int = 0
    free_tokens: int = 0
    step_ms: float = 0.0
    token_ms: float = 0.0
    piece_token_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class KvAudit:
    """The KV memory's books, in blocks; what is neither free nor used by a request is held."""

    total_blocks: int
    free_blocks: int
    held_blocks: int
    request_blocks: int
    held_contexts: Sequence[str] = field(default_factory=tuple)


class Backend(ABC):
    """A model, and contexts over it.

    Contexts. A context is a sequence of tokens under a name. A name that is not known makes one: a
    fork of `parent_context_id`, or an empty root when that is empty. A name that is known goes on
    with its context; its parent may be left out or repeated, not changed. After a generate, the
    context holds the output's text as tokens, without the token or stop text that ended it and
    without control tokens, as if the text had been filled.

    Locking. A context does one thing at a time: using it, forking it or freeing it while it is
    filled or generated from raises `ContextError`. Different contexts, forks of one parent included,
    may be used all at once. A fork copies: what its parent does later does not show in it.

    KV. A context's tokens stay until `free_context`; its KV is held, or is a cache, or is not there,
    and which of them it is changes times and `cached_tokens`, never the output. A fill that is not
    lazy and a generate with `hold` leave the context's KV held. What is held stays before all that
    is merely cached; when what runs needs its memory, held KV goes too, of the context that will be
    used last first (`expect_use`), then of the one that was used longest ago. So a fill or generate
    that fits the memory by itself always finishes, whatever is held. A fork shares its parent's KV;
    freeing either leaves the other's.

    Tenants. Tokens are public, or `private_to` a tenant; behind the first private token all are. A
    context has one tenant at most. Whether KV of private tokens is there shows to no other tenant.

    Cancelling. Closing the generator that `generate` returned, or cancelling the task that waits
    in it or in a fill, takes the work out of the batch within one engine step; the context is then
    as it was before and can be freed.
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
        self,
        token_ids: Sequence[int],
        context_id: str,
        parent_context_id: str = "",
        *,
        private_to: str = "",
        lazy: bool = False,
        cache: bool = True,
        priority: int = 0,
        step_ms: float = 0.0,
        ahead: bool = False,
        ancestors: Sequence[str] = (),
    ) -> FillResult:
        """Appends tokens to a context.

        Args:
            private_to: the tenant whose tokens these are; empty: anybody's.
            lazy: only notes the tokens; their KV is computed with the next fill or generate that
                is not lazy. Otherwise returns when the whole context's KV is there, and holds it.
            cache: False: uses no KV but what is held for this context or its parent.
            priority: lower ones run first.
            step_ms: see `generate`; a fill for an output with a limit goes before those that have none.
            ahead: that output waits for something else too: nobody waits for the fill yet.
            ancestors: contexts that it was forked from, directly or not: their KV, which is the beginning
                of its own, is held for them as well.

        Raises:
            ContextError: see above.
            BackendDeadError: the backend is gone.
            BackendError: it could not be filled.
        """

    @abstractmethod
    def generate(
        self,
        sampling: Sampling,
        context_id: str,
        parent_context_id: str = "",
        *,
        private_to: str = "",
        hold: bool = False,
        cache: bool = True,
        priority: int = 0,
        step_ms: float = 0.0,
        beside_share: float = 0.0,
    ) -> AsyncGenerator[Step, None]:
        """Generates from a context; the last step has a finish reason.

        Prompt and output together must fit the window, which the caller has checked. An output that
        goes on from `sampling.resumed` starts with a text that was streamed before: the context
        already ends with it, and the steps carry what follows it.

        Args:
            hold: leaves the context's KV held, the output's included, for what comes after it.
            cache: as in `fill`.
            step_ms: from its first token on a step is to take no longer, whatever is prefilled beside
                it; 0: it may.
            beside_share: by what share of their time prompts without such a limit may lengthen its steps
                on average; 0: as far as the limit lets them. A backend that can't hold to it does without.

        Raises:
            ContextError: see above.
            UnsupportedError: the sampling asks for what this backend can't do.
            BackendDeadError: the backend is gone.
            BackendError: it could not be generated.
        """

    @abstractmethod
    async def free_context(self, context_id: str) -> None:
        """Forgets a context; one that is not there is already forgotten.

        Raises:
            ContextError: it is in use.
        """

    @abstractmethod
    async def release(self, context_id: str) -> None:
        """Holds a context's KV no longer; its tokens stay. Does nothing where nothing is held."""

    @abstractmethod
    async def expect_use(self, context_id: str, steps: float) -> None:
        """Says in how many steps of its application a held context will be used; infinite: by nobody."""

    @abstractmethod
    def holds(self, context_id: str) -> bool:
        """Whether a context's KV, or some of it, is held, as far as is known here."""

    @abstractmethod
    def stats(self) -> BackendStats:
        """How busy it is now."""

    @abstractmethod
    async def audit(self) -> KvAudit:
        """The KV memory's books.

        Raises:
            IntegrityError: they do not add up; says where.
        """

    @abstractmethod
    async def wait_dead(self) -> str:
        """Returns only when the backend can do nothing more, with the reason."""
