"""A simulated fleet under the real machine: applications in, when each was done out."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from itertools import count, takewhile

from benchmarks.manager.apps import App, AppCall
from benchmarks.manager.engines import Job, Pace, SimEngine
from parrot_manager.core import events
from parrot_manager.core.commands import Command, Dispatch, ExpectUses, FreeContexts
from parrot_manager.core.criteria import Criteria, ObjectiveKind
from parrot_manager.core.machine import Machine
from parrot_manager.core.model import (
    Call,
    Edge,
    Engine,
    Ref,
    Session,
    SessionState,
    SharedContext,
    Timings,
    Usage,
    Value,
    Variable,
    VariableState,
)
from parrot_manager.core.prefixes import prefixes
from parrot_manager.core.scheduling import SchedulingPolicy
from parrot_manager.core.shapes import CHARS_PER_TOKEN, InputPiece, OutputPiece, Shape, TextPiece
from parrot_manager.core.state import Policy

HOP_MS = 2.0
"""From an engine to the manager, and of a value over the bus."""
COMMIT_MS = 4.0
"""Before what the manager decided leaves it."""
HEARTBEAT_MS = 2_000.0
SLACK_MS = 500.0
LATENCY_SLO = 3.0
THROUGHPUT_SLO = 10.0
THROUGHPUT_LEAST_MS = 60_000.0


@dataclass
class Outcome:
    """What became of an application. `ideal_ms`: its longest chain of calls, alone on an idle fleet."""

    kind: str
    tenant: str
    arrived_ms: float
    ideal_ms: float
    objective: ObjectiveKind
    done_ms: float = float("inf")

    @property
    def took_ms(self) -> float:
        """From its arrival."""
        return self.done_ms - self.arrived_ms

    @property
    def stretch(self) -> float:
        """How many times the ideal."""
        return self.took_ms / self.ideal_ms

    @property
    def in_time(self) -> bool:
        """Three times the ideal and half a second, or ten times or a minute, where nobody waits."""
        if self.objective is ObjectiveKind.THROUGHPUT:
            return self.took_ms <= max(THROUGHPUT_LEAST_MS, THROUGHPUT_SLO * self.ideal_ms)
        return self.took_ms <= LATENCY_SLO * self.ideal_ms + SLACK_MS


@dataclass
class Run:
    """One run. Times are ms of the simulation."""

    policy: SchedulingPolicy
    engines: int
    pace: Pace = field(default_factory=Pace)
    now_ms: float = 0.0

    def __post_init__(self) -> None:
        self.machine = Machine(Policy(scheduling=self.policy, default_timeout_ms=10**9))
        self.outcomes: dict[str, Outcome] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._engines = {
            f"e-{n:03}": SimEngine(f"e-{n:03}", self.pace, self._told) for n in range(self.engines)
        }
        self._wakes: dict[str, float] = {}
        self._lengths: dict[tuple[str, str], int] = {}
        self._jobs: dict[Ref, tuple[str, Job]] = {}
        self._pending: dict[tuple[str, str], list[tuple[str, Ref]]] = {}
        self._finals: dict[str, str] = {}

    def play(self, apps: Iterator[App], until_ms: float, drain_ms: float) -> list[Outcome]:
        """Runs the applications that arrive until a time, and a while longer."""
        for name in self._engines:
            engine = Engine(name, 1, "m", self.pace.capacity, 32_768, "bench", kv_tokens=self.pace.kv_tokens)
            self._step(events.EngineJoined(engine))
            self._at(HEARTBEAT_MS, partial(self._beat, name))
        for number, app in enumerate(takewhile(lambda app: app.arrives_ms <= until_ms, apps)):
            self._at(app.arrives_ms, partial(self._arrive, app, number))
        end_ms = until_ms + drain_ms
        while self._queue and self._queue[0][0] <= end_ms:
            self.now_ms, _, do = heapq.heappop(self._queue)
            do()
            if self.now_ms > until_ms and all(one.done_ms < float("inf") for one in self.outcomes.values()):
                break
        return list(self.outcomes.values())

    @property
    def prefilled(self) -> int:
        """Tokens that were computed for prompts."""
        return sum(engine.prefilled for engine in self._engines.values())

    # The world.

    def _at(self, at_ms: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (at_ms, next(self._numbers), do))

    def _beat(self, name: str) -> None:
        self._step(events.EngineReported(name, 1, self._engines[name].load()))
        self._at(self.now_ms + HEARTBEAT_MS, lambda: self._beat(name))

    def _arrive(self, app: App, number: int) -> None:
        session_id = f"s-{number:06}"
        now_ms = int(self.now_ms)
        criteria = Criteria(app.objective)
        session = Session(
            session_id, app.tenant, app.kind, SessionState.OPEN, now_ms, 10**12, criteria=criteria
        )
        accepted = _accepted(session, app)
        for call, one in zip(accepted.calls, app.calls, strict=True):
            self._lengths[session_id, call.id] = one.output_tokens
        self._finals[session_id] = app.calls[-1].output
        self.outcomes[session_id] = Outcome(
            app.kind, app.tenant, self.now_ms, _ideal_ms(app, self.pace), app.objective
        )
        self._step(events.SessionOpened(session))
        self._step(accepted)

    def _step(self, event: events.Event) -> None:
        for command in self.machine.step(event, int(self.now_ms)):
            self._carry_out(command)

    def _carry_out(self, command: Command) -> None:
        match command:
            case Dispatch():
                self._at(self.now_ms + COMMIT_MS, lambda: self._deliver(command))
            case FreeContexts():
                for name in command.context_ids:
                    self._engines[command.engine_id].free(name)
            case ExpectUses():
                for name, steps in command.uses:
                    self._engines[command.engine_id].expect(name, steps)
            case _:
                pass

    def _deliver(self, command: Dispatch) -> None:
        call, engine = command.call, self._engines[command.engine_id]
        live = self.machine.state.sessions[call.session_id]
        tokens = dict(command.pending)
        known = {
            name: variable if name not in tokens else _sized(variable, tokens[name])
            for name, variable in live.variables.items()
            if name in call.input_ids
        }
        chain = [
            (p.hash, p.tokens) for p in prefixes(live.session.tenant, call.session_id, call.shape, known)
        ]
        pending = {name for name in tokens if live.variables[name].state is not VariableState.READY}
        job = Job(
            call.ref,
            chain,
            self._lengths[call.session_id, call.id],
            command.expected_output_tokens,
            command.priority,
            tuple(share.prefix_hash for share in command.shares),
            pending,
        )
        self._jobs[call.ref] = command.engine_id, job
        for name in pending:
            self._pending.setdefault((call.session_id, name), []).append((command.engine_id, call.ref))
        engine.run(job, self.now_ms)
        self._wake(engine)

    def _wake(self, engine: SimEngine) -> None:
        """The engine goes on: now if it is idle, else when its current step ends."""
        at_ms = engine.interrupt(self.now_ms)
        if at_ms is None and engine.name in self._wakes:
            return
        self._schedule(engine, self.now_ms if at_ms is None else at_ms)

    def _schedule(self, engine: SimEngine, at_ms: float) -> None:
        self._wakes[engine.name] = at_ms
        self._at(at_ms, lambda: self._advance(engine, at_ms))

    def _advance(self, engine: SimEngine, at_ms: float) -> None:
        if self._wakes.get(engine.name) != at_ms:
            return
        del self._wakes[engine.name]
        next_ms = engine.step(self.now_ms)
        if next_ms is not None:
            self._schedule(engine, next_ms)

    def _told(self, engine: SimEngine, what: str, about: Job | SharedContext) -> None:
        if isinstance(about, SharedContext):
            event: events.Event = events.ContextsChanged(engine.name, 1, (about,), ())
            self._at(self.now_ms + HOP_MS, lambda: self._step(event))
        elif what == "started":
            self._at(self.now_ms + HOP_MS, lambda: self._step(events.AttemptStarted(about.ref)))
        elif what == "done":
            self._done(engine, about)

    def _done(self, engine: SimEngine, job: Job) -> None:
        live = self.machine.state.sessions[job.ref.session_id]
        variable_id = live.calls[job.ref.call_id].output_ids[0]
        key = job.ref.session_id, variable_id
        for name, ref in self._pending.pop(key, ()):
            self._at(self.now_ms + HOP_MS, partial(self._value_came, name, ref, variable_id))
        self._at(self.now_ms + HOP_MS, lambda: self._report_done(engine, job, variable_id))

    def _value_came(self, name: str, ref: Ref, variable_id: str) -> None:
        engine = self._engines[name]
        engine.arrived(ref, variable_id, self.now_ms)
        self._wake(engine)

    def _report_done(self, engine: SimEngine, job: Job, variable_id: str) -> None:
        ref = job.ref
        data = f"{ref.session_id}/{ref.call_id}/".encode().ljust(job.output_tokens * CHARS_PER_TOKEN, b".")
        usage = Usage(job.prompt, job.cached, job.output_tokens)
        timings = Timings(
            job.began_ms - job.came_ms, job.filled_ms - job.began_ms, self.now_ms - HOP_MS - job.filled_ms
        )
        self._step(events.AttemptDone(ref, (Value(variable_id, data),), usage, timings))
        self._step(events.SlotFreed(engine.name, ref))
        if self._finals[ref.session_id] == variable_id:
            self.outcomes[ref.session_id].done_ms = self.now_ms
            self._step(events.SessionClosing(ref.session_id))


def _accepted(session: Session, app: App) -> events.CallsAccepted:
    now_ms = session.created_ms
    values = {name: _content(content, tokens) for name, (content, tokens) in app.values.items()}
    given = [
        Variable(
            session.id, name, name, VariableState.READY, size_bytes=len(data), ready_ms=now_ms,
            published_ms=now_ms, value_digest=blake2b(data, digest_size=16).digest(),
        )
        for name, data in values.items()
    ]  # fmt: skip
    calls = [_call(session, number, one, now_ms) for number, one in enumerate(app.calls, 1)]
    made = [
        Variable(session.id, one.output, one.output, producer_call_id=call.id)
        for call, one in zip(calls, app.calls, strict=True)
    ]
    wanted = (events.Wanted(app.calls[-1].output, Criteria(app.objective)),)
    return events.CallsAccepted(session.id, tuple(calls), (*given, *made), (), wanted=wanted)


def _call(session: Session, number: int, one: AppCall, now_ms: int) -> Call:
    shape: Shape = tuple(
        TextPiece(blake2b(name.encode(), digest_size=16).digest(), tokens)
        if kind == "text"
        else InputPiece(name)
        for kind, name, tokens in one.pieces
    )
    inputs = tuple(Edge(name, name) for kind, name, _ in one.pieces if kind == "in")
    return Call(
        session.id, f"c-{number}", number, number, one.name, "m", inputs, (Edge(one.output, one.output),),
        b"", now_ms, shape=(*shape, OutputPiece(one.output, one.max_tokens)),
    )  # fmt: skip


def _content(name: str, tokens: int) -> bytes:
    return name.encode().ljust(tokens * CHARS_PER_TOKEN, b".")


def _sized(variable: Variable, tokens: int) -> Variable:
    return Variable(variable.session_id, variable.id, variable.name, size_bytes=tokens * CHARS_PER_TOKEN)


def _ideal_ms(app: App, pace: Pace) -> float:
    """The longest chain of its calls, each alone on an idle engine with nothing in KV."""
    sizes = {name: tokens for name, (_, tokens) in app.values.items()}
    ready = dict.fromkeys(app.values, 0.0)
    done = 0.0
    for call in app.calls:
        prompt = sum(tokens if kind == "text" else sizes[name] for kind, name, tokens in call.pieces)
        begin = max((ready[name] for kind, name, _ in call.pieces if kind == "in"), default=0.0)
        step_ms = pace.step_ms + pace.ms_per_output + pace.ms_per_kv_token * (prompt + call.output_tokens / 2)
        done = begin + COMMIT_MS + HOP_MS + prompt / pace.prefill_per_ms + call.output_tokens * step_ms
        ready[call.output], sizes[call.output] = done, call.output_tokens
    return done
