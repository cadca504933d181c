"""Runs one program of code: reads its inputs, runs its function, publishes what that makes."""

from __future__ import annotations

import time
from typing import Final

from parrot_engine import spans
from parrot_engine.backends.base import Step
from parrot_engine.programs.inputs import Inputs
from parrot_engine.programs.laps import Laps
from parrot_engine.programs.outputs import OutputStream
from parrot_engine.programs.script import malformed, transformed
from parrot_engine.programs.tools import Tools
from parrot_engine.sandbox.backend import SandboxBackend
from parrot_engine.sandbox.slots import Function
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.values.fences import Mark

DEFAULT_TIMEOUT_S: Final = 1.0


class CodeExecution:
    """One program of code on its way; the counterpart of `programs.execution.Execution`."""

    def __init__(
        self, tools: Tools, program: engine_pb2.RunProgram, arrived_ns: int, mark: Mark | None = None
    ) -> None:
        """As `Execution`; the tools' backend is a sandbox."""
        self._tools = tools
        self._program = program
        self._mark = mark
        self._arrived_ns = arrived_ns
        self._claim = tools.admission.enter(program.priority, lambda: None)
        self._timings = common_pb2.Timings()
        self._laps = Laps(arrived_ns)

    @property
    def usage(self) -> common_pb2.Usage:
        """No tokens."""
        return common_pb2.Usage()

    @property
    def laps(self) -> Laps:
        """What it did so far."""
        return self._laps

    async def run(self) -> engine_pb2.AttemptDone:
        """Returns when every output's end is on the bus, acknowledged.

        Raises:
            Fault: why it could not be done.
            BackendError: the sandbox can't be started.
            FencedError: the engine was given up.
        """
        info = self._tools.backend.info
        try:
            with spans.call_span(self._program, info, self._tools.engine_id, self._arrived_ns) as span:
                press = self._tools.press
                async with Inputs.of(self._program, press.finals, press.feeds, pending=()) as inputs:
                    texts = await self._read(inputs)
                    spans.link_inputs(span, inputs.traces())
                self._laps.read()
                ends = await self._publish(await self._run(texts))
        finally:
            self._tools.admission.leave(self._claim)
        return engine_pb2.AttemptDone(
            ref=self._program.ref,
            usage=common_pb2.Usage(),
            timings=self._timings,
            outputs=ends,
            provenance=self._tools.provenance(),
            laps=self._laps.message,
        )

    async def _read(self, inputs: Inputs) -> dict[str, str]:
        if not self._program.HasField("code"):
            raise malformed("no code, and this engine runs nothing else")
        texts: dict[str, str] = {}
        for given in self._program.code.inputs:
            value = await inputs.look(given.source)
            if value is None:
                raise malformed("an input that is pending")
            names = given.source.transforms
            texts[given.name] = await transformed(value.text, names, given.source.variable_id)
        size = sum(len(text.encode()) for text in texts.values())
        if size > limits.BATCH_BYTES:
            raise Fault(
                errors.TOO_LARGE,
                f"its inputs are {size:,} bytes together; a function takes {limits.BATCH_BYTES:,}",
            )
        return texts

    async def _run(self, texts: dict[str, str]) -> dict[str, str]:
        backend = self._tools.backend
        if not isinstance(backend, SandboxBackend):
            raise malformed("code, and this engine serves a model")
        code, options = self._program.code, backend.options
        asked_s = code.timeout_ms / 1000 or DEFAULT_TIMEOUT_S
        function = Function(
            source=code.source,
            entry=code.entry,
            inputs=texts,
            outputs=tuple(made.name for made in code.outputs),
            timeout_s=min(asked_s, options.timeout_s),
            memory_bytes=min(code.memory_bytes or limits.SANDBOX_DEFAULT_BYTES, options.memory_bytes),
        )
        async with self._tools.admission.run(self._claim, 1):
            started_ns = time.time_ns()
            self._laps.queued()
            event = engine_pb2.AttemptStarted(ref=self._program.ref)
            self._tools.press.report(engine_pb2.AttachRequest(started=event))
            made = await backend.run(function)
            self._timings.queue_ms = (started_ns - self._arrived_ns) / 1e6
            self._timings.decode_ms = (time.time_ns() - started_ns) / 1e6
            self._laps.transformed()
        return made

    async def _publish(self, made: dict[str, str]) -> list[engine_pb2.OutputEnd]:
        ends: list[engine_pb2.OutputEnd] = []
        for output in self._program.code.outputs:
            if not output.HasField("sink"):
                # An earlier attempt made it, and its readers have it.
                continue
            stream = OutputStream(self._tools.press, self._program.ref, output.sink, mark=self._mark)
            # All of it in one step, which is the last: it goes with the value, and is not streamed.
            stream.add(Step(made[output.name], (), 0, 0, finish_reason="stop"))
            ends.append(await stream.finish("", self._laps))
        return ends
