"""What is known of a session. Times are Unix milliseconds by its manager's clock; 0: not yet, or unknown."""

from __future__ import annotations

from dataclasses import dataclass

from parrot_runtime.critical_path.stages import Stage


@dataclass(frozen=True, slots=True)
class Lap:
    """One stage of an attempt on its engine, by the engine's clock.

    Attributes:
        awaited: the input whose end it waited for; empty: none.
        published: the output whose value was on the bus at its end; empty: none.
    """

    stage: Stage
    lasted_ms: float
    awaited: str = ""
    published: str = ""


@dataclass(frozen=True, slots=True)
class CallTimes:
    """One call.

    Attributes:
        settled_ms: when its batch came, the last of what had ended in the session was stored.
        entered_ms: its batch was stored.
        ready_ms: its last input was committed.
        first_dispatched_ms: of its attempts; `dispatched_ms` is the last one's, 0 while it waits for another.
        sent_ms: the program went to the engine.
        told_ms: the report of its end came from there.
        laps: of the attempt that is done, from the program's arrival at the engine on.
        by_client: a worker of the client runs its code.
    """

    id: str
    name: str
    accepted_ms: float
    block_id: str = ""
    engine_id: str = ""
    state: str = ""
    by_client: bool = False
    settled_ms: float = 0.0
    entered_ms: float = 0.0
    ready_ms: float = 0.0
    first_dispatched_ms: float = 0.0
    dispatched_ms: float = 0.0
    sent_ms: float = 0.0
    told_ms: float = 0.0
    ended_ms: float = 0.0
    laps: tuple[Lap, ...] = ()
    inputs: tuple[str, ...] = ()

    @property
    def ran(self) -> bool:
        """Whether it ever went to an engine or a worker."""
        return self.first_dispatched_ms > 0 or self.dispatched_ms > 0

    @property
    def sent_ahead(self) -> bool:
        """Whether it went to its engine before its inputs were all there."""
        return self.dispatched_ms > 0 and not 0 < self.ready_ms <= self.dispatched_ms


@dataclass(frozen=True, slots=True)
class VariableTimes:
    """One variable. `producer_id`: the call or block that makes it; empty: the client gave it."""

    id: str
    producer_id: str
    ready_ms: float


@dataclass(frozen=True, slots=True)
class BlockTimes:
    """A part of the graph that unfolds into calls."""

    id: str
    name: str
    accepted_ms: float
    unfolded_ms: float = 0.0
    ended_ms: float = 0.0
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionTimes:
    """A session and all it holds.

    Attributes:
        opened_ms: it was stored.
        settled_ms: the last of what ended before it ended was stored.
        closing_ms: its client asked to end it.
        ended_ms: 0 while it is open.
        lazy: its calls run only when somebody reads what they lead to.
    """

    id: str
    created_ms: float
    opened_ms: float = 0.0
    settled_ms: float = 0.0
    closing_ms: float = 0.0
    ended_ms: float = 0.0
    lazy: bool = False
    calls: tuple[CallTimes, ...] = ()
    variables: tuple[VariableTimes, ...] = ()
    blocks: tuple[BlockTimes, ...] = ()
