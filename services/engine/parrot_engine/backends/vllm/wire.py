"""What the service's process and vLLM's engine process tell each other about contexts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

KEY: Final = "parrot"
"""Where an `Errand` travels in a request's `extra_args`, and `Books` in the scheduler's stats."""


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A context that another one begins with; `length` in tokens, the rest as in an `Errand`."""

    context_id: str
    length: int
    tenant: str = ""
    public_tokens: int = 0
    steps: float = 0.0


@dataclass(frozen=True, slots=True)
class Errand:
    """What a request means for the contexts.

    Attributes:
        context_id: whose tokens the prompt is; its own held KV is used first.
        kv_parent_id: another context whose held KV may be used; empty: none.
        hold: hold the KV for the context when the request has finished.
        fill: the prompt alone is the context's; what is sampled is dropped.
        tenant, public_tokens: whose the tokens are from that one on; empty: all are public.
        cache: use the shared prefix cache too.
        resumed: the output's first tokens, in the prompt already; a guide goes on behind them.
        steps: in how many steps of its application the context will be used next.
        client: who has to be alive for the KV to stay held.
        step_ms: how long a step may take once the output has begun; 0: as long as it likes.
        ahead: nobody waits for it yet.
        ancestors: contexts whose KV is the beginning of this one's, and is held for them too.
        beside_share: by what share prompts without a limit may lengthen its steps on average; 0: see above.
    """

    context_id: str
    kv_parent_id: str = ""
    hold: bool = False
    fill: bool = False
    tenant: str = ""
    public_tokens: int = 0
    cache: bool = True
    resumed: list[int] = field(default_factory=list)
    steps: float = 0.0
    client: str = ""
    step_ms: float = 0.0
    beside_share: float = 0.0
    ahead: bool = False
    ancestors: list[Ancestor] = field(default_factory=list)

    def to_wire(self) -> dict[str, Any]:
        """As `extra_args` of a request."""
        return {KEY: asdict(self)}

    @classmethod
    def of(cls, request: Any) -> Errand | None:
        """The errand of one of vLLM's requests; None: it has none."""
        wire = ((request.sampling_params and request.sampling_params.extra_args) or {}).get(KEY)
        if wire is None:
            return None
        return cls(**{**wire, "ancestors": [Ancestor(**one) for one in wire["ancestors"]]})


@dataclass(frozen=True, slots=True)
class Books:
    """The KV memory after an engine step.

    Attributes:
        held_blocks: blocks of held contexts, shared ones once; `held_tokens`: the tokens in them.
        step_ms: median time of the latest steps that only decoded; 0: none yet.
        token_ms, piece_token_ms: see `BackendStats`.
        dropped: contexts whose KV is held no longer since the last books, though nobody asked for it.
        fault: what is wrong with the books; empty: nothing.
    """

    free_blocks: int = 0
    total_blocks: int = 0
    held_blocks: int = 0
    held_tokens: int = 0
    step_ms: float = 0.0
    token_ms: float = 0.0
    piece_token_ms: float = 0.0
    dropped: list[str] = field(default_factory=list)
    fault: str = ""

    def to_wire(self) -> dict[str, Any]:
        """As part of the scheduler's stats."""
        return {KEY: asdict(self)}

    @classmethod
    def of(cls, stats: Mapping[str, Any] | None) -> Books | None:
        """The books in the scheduler's stats; None: there are none."""
        wire = (stats or {}).get(KEY)
        return None if wire is None else cls(**wire)
