"""The simulated engine's steps: what is in the batch, and who gets the memory and the step's tokens.

Steps run as a real engine's do: each prefills what fits its budget, and gives one token to every
output that is past its prefill. Under pressure, held KV is let go of first, and then the last of
what runs starts over.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from abc import ABC, abstractmethod
from bisect import insort
from dataclasses import dataclass, field

from parrot_engine.backends.base import FinishReason, Phases, Sampling, Step, TokenLogprobs
from parrot_engine.backends.pacing import StepPace
from parrot_engine.backends.sim.kv import KvMemory, KvRequest
from parrot_engine.backends.sim.sampler import Sampler
from parrot_engine.text.stream import TextStream


@dataclass(frozen=True, slots=True)
class Pace:
    """How fast steps are, and how much one takes.

    Attributes:
        capacity: outputs at once; as many fills besides.
        step_tokens: tokens a step prefills at most.
        step_ms: the time of a step that only decodes.
        prefill_tokens_per_s: what each prefilled token adds to its step.
    """

    capacity: int
    step_tokens: int
    step_ms: float
    prefill_tokens_per_s: float

    def step_s(self, prefilled_tokens: int) -> float:
        """The time of a step."""
        return self.step_ms / 1000 + prefilled_tokens / self.prefill_tokens_per_s


@dataclass(slots=True, eq=False)
class Job(ABC):
    """A fill or an output, waiting or in the batch.

    Attributes:
        cached: tokens whose KV was there when it first started.
        hold: what it computed is held for its context when it ends.
    """

    request: KvRequest
    priority: int
    hold: bool
    asked_at: float = field(default_factory=time.perf_counter)
    started_at: float = 0.0
    cached: int = 0
    number: int = 0

    @property
    def order(self) -> tuple[int, int]:
        """Lower ones come first."""
        return self.priority, self.number

    @property
    def missing(self) -> int:
        """Tokens whose KV is not there yet."""
        return len(self.request.tokens) - self.request.computed

    @property
    def decodes(self) -> bool:
        """Whether its next step only takes in the token that the last one gave."""
        return False

    @abstractmethod
    def advance(self, now: float) -> bool:
        """Takes what a step made once nothing is missing; returns whether it has ended."""

    @abstractmethod
    def kill(self) -> None:
        """Ends it because the engine ended."""


@dataclass(slots=True, eq=False)
class FillJob(Job):
    """Computes the KV of a context. `done` says False when the engine ended before that."""

    done: asyncio.Future[bool] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def advance(self, now: float) -> bool:
        self._end(True)
        return True

    def kill(self) -> None:
        self._end(False)

    def _end(self, filled: bool) -> None:
        if not self.done.done():
            self.done.set_result(filled)


@dataclass(slots=True, eq=False)
class OutputJob(Job):
    """Generates one output.

    Attributes:
        step_ms: how long a step may take from the first token on; 0: as long as it likes.
        steps: what each step made; None: the engine ended.
        pieces: the text so far.
    """

    sampling: Sampling = field(kw_only=True)
    sampler: Sampler = field(kw_only=True)
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    step_ms: float = 0.0
    steps: asyncio.Queue[Step | None] = field(default_factory=asyncio.Queue)
    generated: list[int] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    first_at: float = 0.0
    _stream: TextStream = field(init=False)
    _decoder: codecs.IncrementalDecoder = field(
        init=False, default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def __post_init__(self) -> None:
        self._stream = TextStream(self.sampling.stop)

    @property
    def decodes(self) -> bool:
        return bool(self.generated) and self.missing == 1

    def advance(self, now: float) -> bool:
        token, logprobs = self.sampler.draw()
        self.generated.append(token)
        self.request.tokens.append(token)
        text, reason = self._take(token)
        if reason in {"stop", "length"}:
            text += self._stream.finish()
        self.pieces.append(text)
        first = not self.first_at
        self.first_at = self.first_at or now
        self.steps.put_nowait(
            Step(
                text,
                (token,),
                len(self.request.tokens) - len(self.generated),
                self.cached,
                reason,
                self._phases(now) if reason else None,
                logprobs=(logprobs,) if logprobs else (),
                prompt_logprobs=self.prompt_logprobs if first else (),
            )
        )
        return reason is not None

    def kill(self) -> None:
        self.steps.put_nowait(None)

    def _take(self, token: int) -> tuple[str, FinishReason | None]:
        if self.sampler.ends(token):
            return "", "stop"
        count = len(self.generated)
        # A token that is forced may be half a character that nothing goes on with.
        data = self._decoder.decode(bytes((token,)) if token < 256 else b"").encode()
        text, stopped = self._stream.push(data, may_stop=count > self.sampling.min_tokens)
        if stopped:
            return text, "stop_text"
        return text, "length" if count == self.sampling.max_tokens else None

    def _phases(self, now: float) -> Phases:
        return Phases(
            queue_ms=(self.started_at - self.asked_at) * 1000,
            prefill_ms=(self.first_at - self.started_at) * 1000,
            decode_ms=(now - self.first_at) * 1000,
        )


class Batch:
    """What runs and what waits, in the order of priority and arrival."""

    def __init__(self, pace: Pace, memory: KvMemory) -> None:
        self._pace = pace
        self._memory = memory
        self._running: list[Job] = []
        self._waiting: dict[type[Job], list[Job]] = {FillJob: [], OutputJob: []}
        self._work = asyncio.Event()
        self._steps = StepPace()
        self._added = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    @property
    def step_ms(self) -> float:
        """The median of recent steps that only decoded; 0: there was none."""
        return self._steps.decode_ms

    def add(self, job: Job) -> None:
        """Lets a job wait for its turn."""
        self._added += 1
        job.number = self._added
        self._wait(job)
        self._work.set()

    def remove(self, job: Job) -> None:
        """Takes a job out, wherever it is."""
        for jobs in (self._running, self._waiting[type(job)]):
            if job in jobs:
                jobs.remove(job)
                self._memory.end(job.request)

    def kill(self) -> None:
        """Ends all jobs because the engine ends."""
        for job in (*self._running, *self._waiting[FillJob], *self._waiting[OutputJob]):
            job.kill()

    async def run(self) -> None:
        """Runs steps for ever."""
        while True:
            if not self._running and not self.waiting:
                self._work.clear()
                await self._work.wait()
            began = time.perf_counter()
            prefilled = self._schedule(began)
            await asyncio.sleep(self._pace.step_s(prefilled))
            now = time.perf_counter()
            self._steps.note(now - began, prefilled)
            self._advance(now)

    def _schedule(self, now: float) -> int:
        """Gives out the step's memory and tokens; returns the tokens it prefills."""
        budget = left = self._budget()
        for job in list(self._running):
            if job in self._running:
                left -= self._continue(job, left)
        while left > 0 and (first := self._next_waiting()) is not None:
            if not self._memory.begin(first.request, left):
                break
            self._start(first, now)
            left -= self._continue(first, left)
        return budget - left

    def _budget(self) -> int:
        """The tokens that this step may prefill."""
        most = self._pace.step_tokens
        written = (job.step_ms for job in self._running if isinstance(job, OutputJob) and job.generated)
        limit_ms = min(filter(None, written), default=0.0)
        if not limit_ms:
            return most
        jobs = (*self._running, *self._waiting[OutputJob])
        urgent = sum(
            job.missing for job in jobs if isinstance(job, OutputJob) and job.step_ms and not job.decodes
        )
        return max(self._steps.prefilled(limit_ms, most), min(urgent, most))

    def _continue(self, job: Job, left: int) -> int:
        """Computes what a running job may in this step; returns the prefilled tokens of that."""
        decodes = job.decodes
        tokens = job.request.computed + (1 if decodes else min(left, job.missing))
        while not self._memory.grow(job.request, tokens):
            last = self._running.pop()
            self._memory.end(last.request)
            self._wait(last)
            if last is job:
                return 0
        prefilled = 0 if decodes else tokens - job.request.computed
        self._memory.compute(job.request, tokens)
        return prefilled

    def _start(self, job: Job, now: float) -> None:
        self._waiting[type(job)].remove(job)
        insort(self._running, job, key=lambda one: one.order)
        if not job.started_at:
            job.started_at = now
            job.cached = job.request.computed

    def _wait(self, job: Job) -> None:
        insort(self._waiting[type(job)], job, key=lambda one: one.order)

    def _next_waiting(self) -> Job | None:
        """The first job that there is room for in the batch."""
        heads = []
        for kind, jobs in self._waiting.items():
            if jobs and sum(type(job) is kind for job in self._running) < self._pace.capacity:
                heads.append(jobs[0])
        return min(heads, key=lambda job: job.order, default=None)

    def _advance(self, now: float) -> None:
        for job in list(self._running):
            if not job.missing and job.advance(now):
                self._running.remove(job)
                self._memory.end(job.request, hold=job.hold)
