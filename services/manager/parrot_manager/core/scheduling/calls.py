"""A call as the scheduler sees it, and what is decided about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parrot_manager.core.commands import Share
from parrot_manager.core.criteria import Objective
from parrot_manager.core.model import SANDBOX_MODEL, Call, Ref, Session, Variable
from parrot_manager.core.prefixes import Prefix, prefixes
from parrot_manager.core.shapes import CHARS_PER_TOKEN, InputPiece, OutputPiece, TextPiece

ANY_MODEL = ""


def models_taken(model: str) -> tuple[str, ...]:
    """What the calls ask for that an engine of a model takes. Prompts for any model are not for a sandbox."""
    return (model,) if model == SANDBOX_MODEL else (model, ANY_MODEL)


Kin = tuple[str, frozenset[str]]
"""What decides which engines a call may go to: its model, and the engines it failed on."""


@dataclass(frozen=True, slots=True)
class Pending:
    """An input that a running attempt makes."""

    variable_id: str
    producer: Ref


@dataclass(frozen=True, slots=True, order=True)
class QueuedCall:
    """A call that is to run, now or when its inputs are there; sorts oldest session first.

    Attributes:
        name: the semantic function's; calls of one name are alike in length.
        objective: None: nobody deduced it, as for latency without a graph.
        prompt_tokens: about, as far as its inputs have their values.
        max_tokens: of all outputs; 0: not bounded.
        prefixes: its prompt's, shortest first.
        pending: inputs that are still being made; when there are any, it may be placed all the same.
        avoid: engines it failed on: it goes there only if no other serves its model.
    """

    session_created_ms: int
    session_id: str
    order: int
    call_id: str
    model: str = field(compare=False)
    ready_ms: int = field(compare=False)
    tenant: str = field(default="", compare=False)
    name: str = field(default="", compare=False)
    objective: Objective | None = field(default=None, compare=False)
    prompt_tokens: int = field(default=0, compare=False)
    max_tokens: int = field(default=0, compare=False)
    prefixes: tuple[Prefix, ...] = field(default=(), compare=False, repr=False)
    pending: tuple[Pending, ...] = field(default=(), compare=False)
    avoid: frozenset[str] = field(default=frozenset(), compare=False)

    @property
    def key(self) -> tuple[str, str]:
        """The session's and the call's id."""
        return self.session_id, self.call_id

    @property
    def kin(self) -> Kin:
        """Calls that may go to the same engines wait for the same places."""
        return self.model, self.avoid

    @property
    def group(self) -> tuple[str, str] | None:
        """Its task group, among all sessions'; None: it belongs to none."""
        if self.objective is None or not self.objective.group:
            return None
        return self.session_id, self.objective.group


@dataclass(frozen=True, slots=True)
class Placement:
    """A decision: this call to that engine.

    Attributes:
        reason: why there; for people.
        shares: prefixes that are to be shared contexts, shortest first.
        priority: lower ones run first on the engine.
        expected_output_tokens: of all outputs; 0: not known.
        pending: inputs that are still being made, with about how many tokens each will have.
        step_ms: how long a step may take while its output is written; 0: as long as it likes.
        beside_share: by what share prompts that can wait may lengthen those steps on average; 0: as they
            like.
    """

    call: QueuedCall
    engine_id: str
    reason: str = ""
    shares: tuple[Share, ...] = ()
    priority: int = 0
    expected_output_tokens: int = 0
    pending: tuple[tuple[str, int], ...] = ()
    step_ms: int = 0
    beside_share: float = 0.0


def describe(
    session: Session,
    call: Call,
    variables: Mapping[str, Variable],
    *,
    now_ms: int,
    pending: tuple[Pending, ...] = (),
    avoid: frozenset[str] = frozenset(),
) -> QueuedCall:
    """A call as it is now: what its inputs' values are, or that they are not there yet."""
    return QueuedCall(
        session.created_ms,
        session.id,
        call.order,
        call.id,
        call.model,
        now_ms,
        session.tenant,
        call.name,
        call.objective,
        prompt_tokens(call, variables),
        max_tokens(call),
        prefixes(session.tenant, session.id, call.shape, variables),
        pending,
        avoid,
    )


def prompt_tokens(call: Call, variables: Mapping[str, Variable]) -> int:
    """About how many tokens a call fills; inputs without a value count nothing."""
    if not call.shape:
        return sum(variables[name].size_bytes for name in call.input_ids) // CHARS_PER_TOKEN
    texts = sum(piece.tokens for piece in call.shape if isinstance(piece, TextPiece))
    inputs = [piece.variable_id for piece in call.shape if isinstance(piece, InputPiece)]
    return texts + sum(variables[name].size_bytes for name in inputs) // CHARS_PER_TOKEN


def max_tokens(call: Call) -> int:
    """The most tokens a call generates; 0: not bounded."""
    bounds = [piece.max_tokens for piece in call.shape if isinstance(piece, OutputPiece)]
    return sum(bounds) if all(bounds) else 0
