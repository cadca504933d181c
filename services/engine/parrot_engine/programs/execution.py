"""Runs one program: fills what is there, prefills what is not while it waits, generates, publishes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any, Final

from opentelemetry.trace import Span

from parrot_engine import spans
from parrot_engine.backends.base import ContextError, Phases, Sampling, Step
from parrot_engine.programs.inputs import Inputs
from parrot_engine.programs.laps import Laps
from parrot_engine.programs.outputs import OutputStream
from parrot_engine.programs.prompts import Prompts
from parrot_engine.programs.rollouts import Rollouts
from parrot_engine.programs.script import FillStep, GenerateStep, Script, read_script
from parrot_engine.programs.tools import Tools
from parrot_engine.programs.totals import Totals
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.fences import Mark

EXPECTED_OUTPUT_TOKENS: Final = 512
"""What is reserved for an output of which nobody says how long it gets; longer ones make their own room."""


class Execution:
    """One program on its way."""

    def __init__(
        self, tools: Tools, program: engine_pb2.RunProgram, arrived_ns: int, mark: Mark | None = None
    ) -> None:
        """A program about to be run.

        Args:
            arrived_ns: when it came, Unix time; its queueing is counted from there.
            mark: what it writes bears it.
        """
        self._tools = tools
        self._program = program
        self._mark = mark
        self._arrived_ns = arrived_ns
        self._ready_since_ns = arrived_ns
        self._totals = Totals()
        self._laps = Laps(arrived_ns)
        self._ends: list[engine_pb2.OutputEnd] = []
        self._claim = tools.admission.enter(program.priority, self._let_go)
        self._letting_go: set[asyncio.Task[None]] = set()
        self._prompts: Prompts | None = None
        self._started = False

    @property
    def usage(self) -> common_pb2.Usage:
        """What it used so far, also of an output that broke off."""
        return self._totals.usage

    @property
    def laps(self) -> Laps:
        """What it did so far."""
        return self._laps

    async def run(self) -> engine_pb2.AttemptDone:
        """Returns when every output's end is on the bus, acknowledged.

        Raises:
            Fault: why it could not be done.
            BackendError: the backend could not do it.
            FencedError: the engine was given up.
        """
        info = self._tools.backend.info
        try:
            with spans.call_span(self._program, info, self._tools.engine_id, self._arrived_ns) as span:
                share = self._tools.features.prefix_sharing
                script = await read_script(self._program, self._tools.backend.tokenizer, share=share)
                await self._run_script(script, span)
                timings = self._totals.message()
                spans.record_usage(span, self._totals.usage, timings)
        finally:
            self._tools.admission.leave(self._claim)
        return engine_pb2.AttemptDone(
            ref=self._program.ref,
            usage=self._totals.usage,
            timings=timings,
            outputs=self._ends,
            provenance=self._tools.provenance(),
            laps=self._laps.message,
        )

    async def _run_script(self, script: Script, span: Span) -> None:
        press = self._tools.press
        sources = (part.source for part in script.parts())
        pending = {source.variable_id for source in sources if source is not None and source.pending}
        async with (
            Inputs.of(self._program, press.finals, press.feeds, pending=pending) as inputs,
            AsyncExitStack() as shared,
        ):
            prompts = Prompts(
                self._tools,
                self._program,
                script,
                inputs=inputs,
                claim=self._claim,
                spent=self._totals.spent,
                laps=self._laps,
            )
            self._prompts = prompts
            try:
                await prompts.look()
                self._laps.read()
                for step in script.steps:
                    if isinstance(step, FillStep):
                        await self._fill(prompts, step, shared)
                    else:
                        await self._generate(prompts, step)
            finally:
                spans.link_inputs(span, inputs.traces())
                await asyncio.shield(self._free(script))

    async def _fill(self, prompts: Prompts, step: FillStep, shared: AsyncExitStack) -> None:
        if await prompts.fill(step, shared):
            # It waited for an input, not for the engine.
            self._ready_since_ns = time.time_ns()
        self._laps.filled()

    async def _free(self, script: Script) -> None:
        if self._letting_go:
            await asyncio.wait(self._letting_go)
        faults: list[str] = []
        for context_id in sorted(script.context_ids()):
            for name in (context_id, *self._forks(script, context_id)):
                try:
                    await self._tools.backend.free_context(name)
                except ContextError as error:
                    # The others are freed all the same.
                    faults.append(str(error))
        if faults:
            raise ContextError(f"what it used could not be freed: {'; '.join(faults)}")

    def _forks(self, script: Script, context_id: str) -> list[str]:
        return [
            _fork_id(context_id, index)
            for step in script.steps
            if isinstance(step, GenerateStep) and step.context_id == context_id
            for index in range(1, len(step.outputs))
        ]

    def _let_go(self) -> None:
        """Its memory is needed by others: what it holds becomes a cache."""
        if self._prompts is not None:
            task = asyncio.create_task(self._prompts.release(), name="release-paused")
            self._letting_go.add(task)
            task.add_done_callback(self._letting_go.discard)

    async def _generate(self, prompts: Prompts, step: GenerateStep) -> None:
        await prompts.open(step)
        sampling = prompts.resolve(step)
        self._totals.shared[step.context_id] = prompts.shared_tokens(step.context_id)
        if step.resumed:
            await prompts.resume(step)
        self._laps.filled()
        count = len(step.outputs)
        expected = self._program.expected_output_tokens or EXPECTED_OUTPUT_TOKENS * count
        need_tokens = prompts.own_tokens(step.context_id) + min(expected, sampling.max_tokens * count)
        async with self._tools.admission.run(self._claim, need_tokens, count):
            self._laps.queued()
            self._report_started()
            await self._run_outputs(prompts, step, sampling)
        self._ready_since_ns = time.time_ns()

    async def _run_outputs(self, prompts: Prompts, step: GenerateStep, sampling: Sampling) -> None:
        if step.resumed and 0 < step.sampling.max_tokens <= len(step.resumed):
            # All of it was streamed before; only its end was not said.
            output = self._output(prompts, step, 0, sampling)
            self._ends.append(await output.finish("length", self._laps))
            return
        if len(step.outputs) > 1:
            self._totals.computed_ahead(await prompts.compute(step))
            self._laps.filled()
            for index in range(1, len(step.outputs)):
                await prompts.fork(step, _fork_id(step.context_id, index))
        runs = [self._run_output(prompts, step, index, sampling) for index in range(len(step.outputs))]
        self._ends += await _together(runs)
        if len(step.outputs) > 1:
            self._laps.ran()
            for sink in step.outputs[1:]:
                self._laps.published(sink.variable_id)

    async def _run_output(
        self, prompts: Prompts, step: GenerateStep, index: int, sampling: Sampling
    ) -> engine_pb2.OutputEnd:
        context_id = _fork_id(step.context_id, index)
        if index and sampling.seed is not None:
            sampling = replace(sampling, seed=_wrapped(sampling.seed + index))
        output = self._output(prompts, step, index, sampling)
        asked_ns, began_ns = time.time_ns(), time.monotonic_ns()
        last: Step | None = None
        steps = self._tools.backend.generate(
            sampling,
            context_id,
            private_to=self._program.tenant,
            hold=step.continued and index == 0,
            cache=self._tools.features.prefix_sharing,
            priority=self._program.priority,
            step_ms=self._program.step_ms,
            beside_share=self._program.beside_share,
        )
        try:
            async with aclosing(steps):
                async for last in steps:
                    output.add(last)
            if last is None or last.finish_reason is None:
                raise Fault(
                    errors.ENGINE_ERROR, "the output broke off", variable_id=step.outputs[index].variable_id
                )
        except BaseException:
            if last is not None:
                self._account(step, index, last, len(output.token_ids), asked_ns)
            raise
        self._account(step, index, last, len(output.token_ids), asked_ns)
        prompts.went_on(context_id, output.token_ids, output.generated_text, last)
        if index:
            return await output.finish(last.finish_reason)
        self._laps.generated(began_ns, last.phases or Phases())
        return await output.finish(last.finish_reason, self._laps)

    def _output(self, prompts: Prompts, step: GenerateStep, index: int, sampling: Sampling) -> OutputStream:
        sink = step.outputs[index]
        rollouts = None
        if sampling.logprobs is not None or sampling.prompt_logprobs is not None:
            rollouts = Rollouts(
                ref=self._program.ref,
                variable_id=sink.variable_id,
                provenance=self._tools.provenance(),
                seed=sampling.seed,
                prompt_token_ids=prompts.token_ids(step.context_id),
                spell=self._tools.backend.tokenizer.token_bytes,
                resumed_tokens=len(step.resumed),
            )
        return OutputStream(
            self._tools.press, self._program.ref, sink, step.streamed_text, rollouts, self._mark
        )

    def _report_started(self) -> None:
        if not self._started:
            self._started = True
            event = engine_pb2.AttemptStarted(ref=self._program.ref)
            self._tools.press.report(engine_pb2.AttachRequest(started=event))

    def _account(self, step: GenerateStep, index: int, last: Step, tokens: int, asked_ns: int) -> None:
        if index:
            # Alternatives run beside the first, from the same prompt: only their tokens are more.
            self._totals.add_output(tokens)
            return
        waited_ms = (asked_ns - self._ready_since_ns) / 1e6
        self._totals.add(step.context_id, step.parent_context_id, last, tokens, waited_ms)
        spans.record_phases(
            step.outputs[0].variable_id, self._ready_since_ns, asked_ns, last.phases or Phases()
        )


def _fork_id(context_id: str, index: int) -> str:
    """The context of an alternative; the first is the output's own."""
    return f"{context_id}#{index}" if index else context_id


def _wrapped(seed: int) -> int:
    """A seed as a signed 64-bit integer, counted on past its end."""
    return (seed + (1 << 63)) % (1 << 64) - (1 << 63)


async def _together(runs: Sequence[Coroutine[Any, Any, engine_pb2.OutputEnd]]) -> list[engine_pb2.OutputEnd]:
    """Runs all at once; the first that fails ends the others, and is what is raised."""
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
