"""Runs one program: reads its inputs, fills, generates, streams, and publishes the outputs' ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from opentelemetry.trace import Span

from parrot_engine import spans
from parrot_engine.backends.base import Backend, Phases, Step
from parrot_engine.inputs import read_inputs
from parrot_engine.plan import FillStep, GenerateStep, PlanStep, apply_transforms, make_plan
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.writer import DeltaWriter

Report = Callable[[engine_pb2.AttachRequest], None]
"""Takes an event for the manager; never waits."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What every program runs with."""

    engine_id: str
    backend: Backend
    finals: Finals
    writer: DeltaWriter
    report: Report


@dataclass(slots=True)
class _Totals:
    """What a program used so far.

    Attributes:
        counted: by context, how many of its tokens are in the sums already.
    """

    usage: common_pb2.Usage = field(default_factory=common_pb2.Usage)
    timings: common_pb2.Timings = field(default_factory=common_pb2.Timings)
    counted: dict[str, int] = field(default_factory=dict)

    def add(self, step: GenerateStep, last: Step, output_tokens: int, waited_ms: float) -> None:
        """Takes in an output's last step; a token of the prompt is counted once, cached or not."""
        counted = self.counted.get(step.context_id, self.counted.get(step.parent_context_id, 0))
        self.usage.prompt_tokens += max(0, last.prompt_tokens - counted)
        self.usage.cached_tokens += max(0, last.cached_tokens - counted)
        self.usage.output_tokens += output_tokens
        self.counted[step.context_id] = last.context_tokens
        phases = last.phases or Phases()
        self.timings.queue_ms += waited_ms + phases.queue_ms
        self.timings.prefill_ms += phases.prefill_ms
        self.timings.decode_ms += phases.decode_ms


class Execution:
    """One program on its way."""

    def __init__(self, tools: Tools, program: engine_pb2.RunProgram, arrived_ns: int) -> None:
        """`arrived_ns`: when the program came, Unix time; its queueing is counted from there."""
        self._tools = tools
        self._program = program
        self._waiting_since_ns = arrived_ns
        self._arrived_ns = arrived_ns
        self._totals = _Totals()
        self._ends: list[engine_pb2.OutputEnd] = []

    async def run(self) -> engine_pb2.AttemptDone:
        """Returns when every output's end is on the bus, acknowledged.

        Raises:
            Fault: why it could not be done.
            BackendError: the backend could not do it.
        """
        info = self._tools.backend.info
        with spans.call_span(self._program, info, self._tools.engine_id, self._arrived_ns) as span:
            plan = await self._plan(span)
            try:
                for step in plan:
                    await self._run_step(step)
            finally:
                await asyncio.shield(self._free(plan))
            spans.record_usage(span, self._totals.usage)
        return engine_pb2.AttemptDone(
            ref=self._program.ref,
            usage=self._totals.usage,
            timings=self._totals.timings,
            outputs=self._ends,
        )

    async def _plan(self, span: Span) -> list[PlanStep]:
        values = await read_inputs(self._tools.finals, self._program)
        for variable_id, value in values.items():
            spans.link_input(span, variable_id, value.trace)
        backend = self._tools.backend
        return await make_plan(self._program, values, backend.tokenizer, backend.info)

    async def _run_step(self, step: PlanStep) -> None:
        if isinstance(step, FillStep):
            await self._tools.backend.fill(step.token_ids, step.context_id, step.parent_context_id)
        else:
            await self._generate(step)

    async def _free(self, plan: list[PlanStep]) -> None:
        for context_id in {step.context_id for step in plan}:
            await self._tools.backend.free_context(context_id)

    async def _generate(self, step: GenerateStep) -> None:
        backend = self._tools.backend
        opened = await backend.fill((), step.context_id, step.parent_context_id)
        sampling = step.resolve(backend.info.context_window_tokens - opened.context_tokens)
        output = _OutputStream(self._tools, self._program.ref, step.output, self._delta_subject(step))
        asked_ns = time.time_ns()
        last: Step | None = None
        async with aclosing(backend.generate(sampling, step.context_id)) as steps:
            async for last in steps:
                output.add(last)
        if last is None or last.finish_reason is None:
            raise Fault(errors.ENGINE_ERROR, "the output broke off", variable_id=step.output.variable_id)
        self._account(step, last, output.tokens, asked_ns)
        self._ends.append(await output.finish(last))

    def _delta_subject(self, step: GenerateStep) -> str:
        """Where the output is streamed; an output that is transformed at its end is not."""
        return "" if step.output.transforms else step.output.delta_subject

    def _account(self, step: GenerateStep, last: Step, output_tokens: int, asked_ns: int) -> None:
        waited_ms = (asked_ns - self._waiting_since_ns) / 1e6
        self._totals.add(step, last, output_tokens, waited_ms)
        spans.record_phases(
            step.output.variable_id, self._waiting_since_ns, asked_ns, last.phases or Phases()
        )
        self._waiting_since_ns = time.time_ns()


class _OutputStream:
    """Streams one output, and keeps its text for the end."""

    def __init__(
        self, tools: Tools, ref: engine_pb2.AttemptRef, sink: engine_pb2.VariableSink, delta_subject: str
    ) -> None:
        self._tools = tools
        self._ref = ref
        self._sink = sink
        self._delta_subject = delta_subject
        self._pieces: list[str] = []
        self._size_bytes = 0
        self.tokens = 0

    def add(self, step: Step) -> None:
        """Sends what a step added.

        Raises:
            Fault: `too_large`, when the output exceeds what a value may be.
        """
        self.tokens += len(step.token_ids)
        if not step.text:
            return
        if self._delta_subject:
            self._send(step.text)
        self._pieces.append(step.text)
        self._size_bytes += len(step.text.encode())
        if self._size_bytes > limits.VALUE_BYTES:
            raise Fault(
                errors.TOO_LARGE,
                f"the output exceeds {limits.VALUE_BYTES:,} bytes; lower its max_tokens",
                variable_id=self._sink.variable_id,
            )

    def _send(self, text: str) -> None:
        if not self._pieces:
            event = engine_pb2.AttemptStreaming(ref=self._ref, variable_id=self._sink.variable_id)
            self._tools.report(engine_pb2.AttachRequest(streaming=event))
        self._tools.writer.append(
            self._delta_subject,
            variable_id=self._sink.variable_id,
            call_id=self._ref.call_id,
            attempt=self._ref.attempt,
            offset_bytes=self._size_bytes,
            text=text,
        )

    async def finish(self, last: Step) -> engine_pb2.OutputEnd:
        """Publishes the value; returns once the bus has it."""
        sink = self._sink
        text = apply_transforms("".join(self._pieces), sink.transforms, sink.variable_id)
        await self._tools.writer.flush()
        record = FinalRecord(
            variable_id=sink.variable_id, call_id=self._ref.call_id, attempt=self._ref.attempt, text=text
        )
        await self._tools.finals.publish(sink.final_subject, record)
        return engine_pb2.OutputEnd(
            variable_id=sink.variable_id,
            size_bytes=len(text.encode()),
            finish_reason=last.finish_reason or "",
        )
