"""What the machine remembers: the sessions that live, the engines, and the queue between them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from parrot_manager.core.graph import Graph
from parrot_manager.core.model import Attempt, Call, Session, Variable
from parrot_manager.core.scheduler import EngineLoad, QueuedCall, ReadyQueue


@dataclass(frozen=True, slots=True)
class Policy:
    """The machine's settings, in milliseconds but for the counts.

    Attributes:
        engine_wait_ms: how long a ready call waits for an engine of its model to be there at all.
        republish_after_ms: values put on the bus longer ago are put there again before use.
        value_retries: how often a call is tried again because an input's value was not on the bus.
        retain_ms: how long an ended session stays in memory.
    """

    engine_wait_ms: int = 30_000
    default_timeout_ms: int = 3_600_000
    longest_timeout_ms: int = 86_400_000
    republish_after_ms: int = 50 * 60_000
    value_retries: int = 2
    retain_ms: int = 300_000


@dataclass(slots=True)
class LiveSession:
    """A session in memory.

    Attributes:
        missing: inputs that are not ready, by waiting call.
        unfinished: the calls that have not ended.
        open_variables: the variables that have not ended.
        attempts: the running attempt of each call that has one.
        queued: the entries of its calls in the ready queue.
    """

    session: Session
    calls: dict[str, Call] = field(default_factory=dict)
    variables: dict[str, Variable] = field(default_factory=dict)
    graph: Graph = field(default_factory=Graph)
    missing: dict[str, int] = field(default_factory=dict)
    unfinished: dict[str, None] = field(default_factory=dict)
    open_variables: dict[str, None] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    queued: dict[str, QueuedCall] = field(default_factory=dict)

    @property
    def next_number(self) -> int:
        """The number the next call gets."""
        return len(self.calls) + 1

    def put_call(self, call: Call) -> None:
        """Keeps a call's newest snapshot."""
        self.calls[call.id] = call
        if call.state.ended:
            self.unfinished.pop(call.id, None)
            self.missing.pop(call.id, None)
        else:
            self.unfinished[call.id] = None

    def put_variable(self, variable: Variable) -> None:
        """Keeps a variable's newest snapshot."""
        self.variables[variable.id] = variable
        if variable.state.ended:
            self.open_variables.pop(variable.id, None)
        else:
            self.open_variables[variable.id] = None


@dataclass(slots=True)
class State:
    """All of it.

    Attributes:
        unserved_since: since when a model that is asked for has no engine.
        draining: nothing is dispatched any more.
    """

    sessions: dict[str, LiveSession] = field(default_factory=dict)
    engines: dict[str, EngineLoad] = field(default_factory=dict)
    ready: ReadyQueue = field(default_factory=ReadyQueue)
    unserved_since: dict[str, int] = field(default_factory=dict)
    draining: bool = False

    def serving(self, model: str) -> bool:
        """Whether an engine is there that takes calls of a model."""
        return any(load.serves(model) for load in self.engines.values())

    def models(self) -> list[str]:
        """The models that are served, each once."""
        return sorted({load.engine.model for load in self.engines.values()})

    def running_attempts(self) -> int:
        """Attempts that have not ended, in all sessions."""
        return sum(len(live.attempts) for live in self.sessions.values())

    def check_integrity(self) -> None:
        """Raises AssertionError when what is kept twice does not agree; for tests."""
        for live in self.sessions.values():
            _check_session(live)
        queued = [item for live in self.sessions.values() for item in live.queued.values()]
        _agree(sorted(queued), sorted(self._queue()), "queue")

    def _queue(self) -> Iterable[QueuedCall]:
        for model in self.ready.models():
            yield from self.ready.of(model)


def _check_session(live: LiveSession) -> None:
    _agree(set(live.unfinished), {c.id for c in live.calls.values() if not c.state.ended}, "unfinished")
    _agree(set(live.open_variables), {v.id for v in live.variables.values() if not v.state.ended}, "open")
    for call_id, missing in live.missing.items():
        inputs = live.calls[call_id].input_ids
        _agree(missing, sum(not live.variables[name].state.ended for name in inputs), call_id)
    if live.session.state.ended:
        _agree(len(live.unfinished), 0, "calls of an ended session")


def _agree(left: object, right: object, what: str) -> None:
    if left != right:
        raise AssertionError(f"{what}: {left!r} is not {right!r}")
