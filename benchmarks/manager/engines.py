"""Engines in simulated time: steps, batches and KV as the simulated backend has them, without its clock.

A step prefills what fits its budget and gives one token to every output that is past its prefill. Its time
grows with what it prefills and with the KV it reads, a shared prefix once. What was prefilled stays in KV
until the room is needed: first what was least recently used and nobody asked to hold, then held contexts,
those furthest from their next use first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from parrot_manager.core.model import Load, Ref, SharedContext


@dataclass(frozen=True)
class Pace:
    """How fast an engine is; a 7B model on one GPU, about."""

    step_ms: float = 12.0
    ms_per_kv_token: float = 0.0025
    ms_per_output: float = 0.15
    prefill_per_ms: float = 10.0
    step_tokens: int = 2_048
    capacity: int = 64
    kv_tokens: int = 60_000
    chunk_tokens: int = 64


@dataclass(eq=False)
class Job:
    """A program on an engine.

    Attributes:
        chain: the prompt's prefixes, shortest first: hash and tokens in all.
        output_tokens: what it will generate.
        reserve: what the manager expects it to generate.
        pending: inputs that are still made.
        late_tokens: of the prompt, those of pending inputs.
    """

    ref: Ref
    chain: list[tuple[str, int]]
    output_tokens: int
    reserve: int
    priority: int
    shares: tuple[str, ...] = ()
    pending: set[str] = field(default_factory=set)
    number: int = 0
    came_ms: float = 0.0
    began_ms: float = 0.0
    filled_ms: float = 0.0
    missing: int | None = None
    cached: int = 0
    made: int = 0
    early_tokens: int = 0

    @property
    def prompt(self) -> int:
        """Its tokens."""
        return self.chain[-1][1] if self.chain else 0


@dataclass(eq=False)
class SimEngine:
    """One engine. `tell` is given what it reports, when it happens."""

    name: str
    pace: Pace
    tell: Callable[[SimEngine, str, Job | SharedContext], None]
    now_ms: float = 0.0
    waiting: list[Job] = field(default_factory=list)
    paused: dict[Ref, Job] = field(default_factory=dict)
    filling: list[Job] = field(default_factory=list)
    decoding: list[Job] = field(default_factory=list)
    kv: OrderedDict[str, int] = field(default_factory=OrderedDict)
    pins: dict[str, int] = field(default_factory=dict)
    hints: dict[str, float] = field(default_factory=dict)
    pinned_tokens: int = 0
    kv_used: int = 0
    reserved: int = 0
    debt: int = 0
    jumping: tuple[float, float, int] | None = None
    prefilled: int = 0
    recomputed: int = 0
    numbers: int = 0

    # What it is told.

    def run(self, job: Job, now_ms: float) -> None:
        """A program came."""
        self.numbers += 1
        job.number, job.came_ms = self.numbers, now_ms
        if job.pending:
            self.paused[job.ref] = job
            self._prefill_ahead(job)
        else:
            self._enter(job, now_ms)

    def arrived(self, ref: Ref, variable_id: str, now_ms: float) -> None:
        """A pending input is complete."""
        job = self.paused.get(ref)
        if job is not None:
            job.pending.discard(variable_id)
            if not job.pending:
                del self.paused[ref]
                self._enter(job, now_ms)

    def expect(self, name: str, steps: float) -> None:
        """When a held context is used next; negative: nobody waits."""
        if name in self.kv:
            self.hints[name] = steps if steps >= 0 else float("inf")

    def free(self, name: str) -> None:
        """Nobody needs a held context: it is a cache entry like any other."""
        self.hints.pop(name, None)

    def load(self) -> Load:
        """For a heartbeat."""
        running = len(self.filling) + len(self.decoding)
        step_ms = self._step_ms(0) if self.decoding else 0.0
        return Load(running, len(self.waiting), len(self.paused), step_ms=step_ms)

    # Steps.

    def step(self, now_ms: float) -> float | None:
        """Finishes the step that ends now and begins the next; returns when that ends, None: idle."""
        self.now_ms = now_ms
        self._finish(now_ms)
        self._admit(now_ms)
        return self._begin(now_ms)

    def interrupt(self, now_ms: float) -> float | None:
        """Somebody came while many steps were taken at once: the end of the one that runs now."""
        if self.jumping is None:
            return None
        began, step_ms, steps = self.jumping
        done = min(steps, int((now_ms - began) / step_ms) + 1)
        self.jumping = (began, step_ms, done)
        return began + done * step_ms

    def _begin(self, now_ms: float) -> float | None:
        filled = self._fill()
        if not self.filling and not self.decoding and not filled:
            self.jumping = None
            return None
        ahead = min(self.debt, self.pace.chunk_tokens)
        self.debt -= ahead
        busy = filled or self.filling or self.debt
        steps = 1 if busy else max(1, min(job.output_tokens - job.made for job in self.decoding))
        grown = len(self.decoding) * (steps - 1) / 2
        step_ms = self._step_ms(filled + ahead, grown)
        self.jumping = (now_ms, step_ms, steps)
        return now_ms + steps * step_ms

    def _step_ms(self, prefilled: int, grown: float = 0.0) -> float:
        pace = self.pace
        kv = self.pinned_tokens + sum(job.made for job in self.decoding) + grown
        outputs = len(self.decoding)
        return (
            pace.step_ms
            + pace.ms_per_kv_token * kv
            + pace.ms_per_output * outputs
            + prefilled / pace.prefill_per_ms
        )

    def _finish(self, now_ms: float) -> None:
        if self.jumping is None:
            return
        _, _, steps = self.jumping
        self.jumping = None
        for job in self.decoding:
            job.made += steps
        for job in [job for job in self.decoding if job.made >= job.output_tokens]:
            self.decoding.remove(job)
            self._release(job)
            self.tell(self, "done", job)
        for job in [job for job in self.filling if job.missing == 0]:
            self.filling.remove(job)
            job.filled_ms = now_ms
            job.made = 1
            self.decoding.append(job)
            self.tell(self, "streaming", job)

    def _fill(self) -> int:
        left = self.pace.step_tokens
        for job in self.filling:
            if left <= 0:
                break
            if job.missing is None:
                self._look_up(job)
            take = min(left, job.missing or 0)
            job.missing = (job.missing or 0) - take
            left -= take
        filled = self.pace.step_tokens - left
        self.prefilled += filled
        return filled

    def _look_up(self, job: Job) -> None:
        """What is in KV when its turn comes counts; the rest will be there from now on."""
        have = max(
            (tokens for name, tokens in job.chain if name in self.kv and self._contiguous(job, name)),
            default=0,
        )
        have = max(have, job.early_tokens)
        job.cached = min(have, max(0, job.prompt - 1))
        job.missing = job.prompt - job.cached
        self._pin(job)

    def _contiguous(self, job: Job, name: str) -> bool:
        for prefix, _ in job.chain:
            if prefix not in self.kv:
                return False
            if prefix == name:
                return True
        return False

    # KV.

    def _admit(self, now_ms: float) -> None:
        while self.waiting and len(self.filling) + len(self.decoding) < self.pace.capacity:
            job = self.waiting[0]
            running = self.filling or self.decoding
            need = job.reserve + self._new_tokens(job)
            if running and self.pinned_tokens + self.reserved + need > self.pace.kv_tokens:
                return
            self.waiting.pop(0)
            job.began_ms = now_ms
            self.reserved += job.reserve
            self.filling.append(job)
            self.filling.sort(key=lambda one: (one.priority, one.number))
            self.tell(self, "started", job)

    def _new_tokens(self, job: Job) -> int:
        below, new = 0, 0
        for name, tokens in job.chain:
            new += 0 if self.pins.get(name) else tokens - below
            below = tokens
        return new

    def _pin(self, job: Job) -> None:
        below = 0
        for name, tokens in job.chain:
            own = tokens - below
            below = tokens
            if name not in self.kv:
                self.kv[name] = own
                self.kv_used += own
            if not self.pins.get(name):
                self.pinned_tokens += self.kv[name]
            self.pins[name] = self.pins.get(name, 0) + 1
        for name, _ in reversed(job.chain):
            self.kv.move_to_end(name)
        for name in job.shares:
            fresh = name not in self.hints
            self.hints.setdefault(name, 0.0)
            if fresh:
                self.tell(self, "context", SharedContext(name, name, dict(job.chain)[name], True))
        self._evict()

    def _release(self, job: Job) -> None:
        self.reserved -= job.reserve
        for name, _ in job.chain:
            self.pins[name] -= 1
            if not self.pins[name]:
                del self.pins[name]
                self.pinned_tokens -= self.kv[name]

    def _evict(self) -> None:
        room = self.pace.kv_tokens - self.reserved
        while self.kv_used > room:
            victim = next(
                (name for name in self.kv if name not in self.pins and name not in self.hints), None
            )
            if victim is None:
                held = [name for name in self.kv if name not in self.pins]
                if not held:
                    return
                victim = max(held, key=lambda name: self.hints.get(name, 0.0))
                del self.hints[victim]
                self.tell(self, "context", SharedContext(victim, victim, self.kv[victim], False))
            self.kv_used -= self.kv.pop(victim)

    def _enter(self, job: Job, now_ms: float) -> None:
        self.waiting.append(job)
        self.waiting.sort(key=lambda one: (one.priority, one.number))

    def _prefill_ahead(self, job: Job) -> None:
        """What a paused program has, and its inputs as they come but for the last chunk, if there is room."""
        ahead = max(0, job.prompt - self.pace.chunk_tokens * len(job.pending))
        if self.pinned_tokens + self.reserved + ahead < 0.9 * self.pace.kv_tokens and not self.waiting:
            cached = max((tokens for name, tokens in job.chain if name in self.kv), default=0)
            self.debt += max(0, ahead - cached)
            job.early_tokens = ahead
