"""What the machine remembers: the sessions that live, and the fleet that works for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from parrot_manager.core.blocks.live import LiveBlocks
from parrot_manager.core.blocks.model import Block
from parrot_manager.core.events import AttemptDone
from parrot_manager.core.graph import Graph
from parrot_manager.core.model import (
    Attempt,
    Batch,
    Call,
    Failure,
    Ref,
    Session,
    Streamed,
    Variable,
)
from parrot_manager.core.scheduling import APP_CENTRIC, EngineLoad, Fleet, QueuedCall, SchedulingPolicy
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault


@dataclass(frozen=True, slots=True)
class Policy:
    """The machine's settings, in milliseconds but for the counts.

    Attributes:
        engine_wait_ms: how long a ready call waits for an engine of its model to be there at all.
        republish_after_ms: values put on the bus longer ago are put there again before use.
        value_retries: how often a call is tried again because an input's value was not on the bus.
        max_losses: how often a call is tried again because its engine was lost or failed.
        retry_ms: before the second of these tries; each further one waits twice as long.
        longest_retry_ms: the most it waits.
        adopt_ms: how long an attempt of before a restart waits for its engine to claim it.
        retain_ms: how long an ended session stays in memory.
        claim_ms: how long a worker of the client has a call that it has claimed, unless it is heard of.
        scheduling: who goes where and when.
    """

    engine_wait_ms: int = 30_000
    default_timeout_ms: int = 3_600_000
    longest_timeout_ms: int = 86_400_000
    republish_after_ms: int = 50 * 60_000
    value_retries: int = 2
    max_losses: int = 5
    retry_ms: int = 100
    longest_retry_ms: int = 5_000
    adopt_ms: int = 3_000
    retain_ms: int = 300_000
    claim_ms: int = 15_000
    scheduling: SchedulingPolicy = APP_CENTRIC


@dataclass(slots=True)
class Trouble:
    """What is known of a call whose attempts went wrong.

    Attributes:
        failure: why its attempt, which is being looked at, will not be done; None: it is lost.
        streamed: what the bus holds of its outputs, until its next attempt has taken that over.
        made: outputs that are complete and not committed, for an input of the call is not.
        called_back: its attempt, which was sent ahead, is told to stop, that its producer finds a place.
        avoid: engines it is not tried on again.
        backing_off: it goes on when its timer rings, not before.
    """

    failure: Failure | None = None
    streamed: tuple[Streamed, ...] = ()
    made: tuple[Variable, ...] = ()
    called_back: bool = False
    avoid: frozenset[str] = frozenset()
    backing_off: bool = False


@dataclass(frozen=True, slots=True)
class Offer:
    """A call that waits for a worker of the client, or for news of the one that claimed it.

    Attributes:
        worker: who claimed it; empty: nobody yet.
        until_ms: when it fails, unless something happens before.
    """

    worker: str
    until_ms: int


@dataclass(slots=True)
class LiveSession:
    """A session in memory.

    Attributes:
        missing: inputs that are not ready, by call, and a condition that is not known to hold; a call
            sent ahead of its inputs keeps its count.
        unfinished: the calls that have not ended.
        open_variables: the variables that have not ended.
        attempts: the running attempt of each call that has one.
        stopping: attempts that were cancelled and whose engines, by id, have not said that they stopped.
        queued: the calls the fleet may place, as it was told of them.
        troubles: of calls that were not done at the first try.
        deduced: how many calls were unfinished when their objectives were last deduced.
        stale: they are to be deduced again, in a moment.
        early: ends of calls that were sent ahead of their inputs, and whose inputs are not committed yet.
        idle: calls of a lazy session that nobody has asked for yet.
        batches: those that came with an idempotency key, by it.
        numbers: the highest number a call or block has, or keeps for its instances.
        offers: calls for workers of the client whose inputs are there.
    """

    session: Session
    calls: dict[str, Call] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    graph: Graph = field(default_factory=Graph)
    missing: dict[str, int] = field(default_factory=dict)
    unfinished: dict[str, None] = field(default_factory=dict)
    open_variables: dict[str, None] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    stopping: dict[Ref, str] = field(default_factory=dict)
    queued: dict[str, QueuedCall] = field(default_factory=dict)
    troubles: dict[str, Trouble] = field(default_factory=dict)
    early: dict[str, AttemptDone] = field(default_factory=dict)
    deduced: int = 0
    stale: bool = False
    idle: dict[str, None] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    blocks: LiveBlocks = field(default_factory=LiveBlocks)
    numbers: int = 0
    offers: dict[str, Offer] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        """The number the next call or block gets."""
        return self.numbers + 1

    def refuse(self, new_calls: int) -> Fault | None:
        """Why the session takes so many more calls not; None: it takes them."""
        if len(self.calls) + new_calls <= limits.SESSION_CALLS:
            return None
        return Fault(
            errors.TOO_LARGE,
            f"the session has {len(self.calls):,} calls, and {new_calls:,} more exceed the "
            f"{limits.SESSION_CALLS:,} that one session takes; open another one",
            session_id=self.session.id,
        )

    def put_call(self, call: Call) -> None:
        """Keeps a call's newest snapshot."""
        self.calls[call.id] = call
        self.numbers = max(self.numbers, call.number)
        if call.state.ended:
            self.blocks.drop(call.id)
            for kept in (
                self.unfinished,
                self.missing,
                self.troubles,
                self.idle,
                self.early,
                self.offers,
            ):
                kept.pop(call.id, None)
        else:
            self.unfinished[call.id] = None

    def put_block(self, block: Block) -> None:
        """Keeps a block's newest snapshot."""
        self.numbers = max(self.numbers, block.last_number)
        self.blocks.put(block)

    def put_variable(self, variable: Variable) -> None:
        """Keeps a variable's newest snapshot."""
        self.variables[variable.id] = variable
        if variable.state.ended:
            self.open_variables.pop(variable.id, None)
        else:
            self.open_variables[variable.id] = None

    def open_inputs(self, call: Call) -> list[str]:
        """What a call waits for that has not ended."""
        return [name for name in call.needed_ids if name in self.open_variables]

    def waits(self, variable_ids: Iterable[str]) -> bool:
        """Whether one of these variables has not ended."""
        return any(name in self.open_variables for name in variable_ids)

    def open_outputs(self, call: Call) -> tuple[str, ...]:
        """The outputs of a call that have not ended."""
        return tuple(name for name in call.output_ids if name in self.open_variables)

    def trouble(self, call_id: str) -> Trouble:
        """What is known of a call that went wrong; kept from here on."""
        return self.troubles.setdefault(call_id, Trouble())

    def backing_off(self, call_id: str) -> bool:
        """Whether a call waits for its next try."""
        found = self.troubles.get(call_id)
        return found is not None and found.backing_off


@dataclass(slots=True)
class State:
    """All of it.

    Attributes:
        orphans: attempts of before a restart whose engine has not claimed them yet, by engine.
        unserved_since: since when a model that is asked for has no engine.
        draining: nothing is dispatched any more.
    """

    sessions: dict[str, LiveSession] = field(default_factory=dict)
    fleet: Fleet = field(default_factory=Fleet)
    orphans: dict[str, dict[Ref, None]] = field(default_factory=dict)
    unserved_since: dict[str, int] = field(default_factory=dict)
    draining: bool = False

    @property
    def engines(self) -> Mapping[str, EngineLoad]:
        """The engines that are attached, by id."""
        return self.fleet.engines

    def serving(self, model: str) -> bool:
        """Whether an engine is there that takes calls of a model."""
        return self.fleet.serving(model)

    def models(self) -> list[str]:
        """The models that are served, each once."""
        return self.fleet.models()

    def running_attempts(self) -> int:
        """Attempts that have not ended, in all sessions."""
        return sum(len(live.attempts) for live in self.sessions.values())

    def check_integrity(self) -> None:
        """Raises AssertionError when what is kept twice does not agree; for tests."""
        for live in self.sessions.values():
            _check_session(live)
        queued = [item for live in self.sessions.values() for item in live.queued.values()]
        told = [item for model in self.fleet.asked_models() for item in self.fleet.queued(model)]
        _agree(sorted(queued), sorted(told), "queue")
        waiting = sum(not item.pending for item in told)
        _agree(sum(backlog.calls for backlog in self.fleet.backlogs), waiting, "backlog")
        for refs in self.orphans.values():
            for ref in refs:
                _agree(self.sessions[ref.session_id].attempts[ref.call_id].ref, ref, "orphan")


def _check_session(live: LiveSession) -> None:
    _agree(set(live.unfinished), {c.id for c in live.calls.values() if not c.state.ended}, "unfinished")
    _agree(set(live.open_variables), {v.id for v in live.variables.values() if not v.state.ended}, "open")
    for call_id, missing in live.missing.items():
        undecided = call_id in live.blocks.undecided
        _agree(missing, len(live.open_inputs(live.calls[call_id])) + undecided, call_id)
    for call_id in live.unfinished:
        _agree(_places(live, call_id), 1, f"places of {call_id}")
    for block in live.blocks.opened():
        _agree(any(name in live.open_variables for name in block.output_ids), True, block.id)
    making: dict[str, int] = dict.fromkeys(live.blocks.left, 0)
    for call_id in live.unfinished:
        block_id = live.calls[call_id].block_id
        if block_id in making:
            making[block_id] += len(live.open_outputs(live.calls[call_id]))
    _agree(live.blocks.left, making, "left to be made")
    if live.session.state.ended:
        _agree(len(live.unfinished), 0, "calls of an ended session")
        _agree(len(live.blocks.open), 0, "blocks of an ended session")


def _places(live: LiveSession, call_id: str) -> int:
    """Where a call is, of: with an engine, backing off, idle, ready, waiting, offered. It is in one place."""
    if call_id in live.offers:
        return 1 + (call_id in live.queued or call_id in live.missing or call_id in live.attempts)
    if call_id in live.attempts:
        return 1 - (call_id in live.queued)
    if live.backing_off(call_id) or call_id in live.idle:
        return 1 - (call_id in live.queued)
    return 1 if call_id in live.queued or call_id in live.missing else 0


def _agree(left: object, right: object, what: str) -> None:
    if left != right:
        raise AssertionError(f"{what}: {left!r} is not {right!r}")
