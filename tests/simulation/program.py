"""One program on a simulated engine: reads its inputs, waits for a place, says its outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parrot_manager.core import commands, events
from parrot_manager.core.model import Ref, Usage
from parrot_runtime import errors
from parrot_runtime.errors import KINDS, Fault
from parrot_runtime.ids import shard_of
from parrot_runtime.values.finals import FinalRecord
from parrot_runtime.values.reader import Chunk
from tests.simulation import texts
from tests.simulation.bus import Delta
from tests.simulation.kernel import Process, sleep
from tests.simulation.reader import Feed
from tests.simulation.texts import Output, Spec
from tests.simulation.violations import promise

if TYPE_CHECKING:
    from tests.simulation.engine import SimEngine

MISSING_RETRIES = 4


@dataclass(slots=True, eq=False)
class Program:
    """A program. `serial`: its place among all, in time."""

    process: Process
    command: commands.Dispatch
    serial: int = field(init=False)

    def __post_init__(self) -> None:
        self.serial = self.process.clock.now_ms

    @property
    def ref(self) -> Ref:
        """The attempt it is."""
        return self.command.call.ref


async def run(engine: SimEngine, program: Program) -> events.AttemptDone:
    """Runs a program to its end.

    Raises:
        Fault: why it could not be done.
    """
    command = program.command
    if engine.draining:
        raise Fault(errors.INTERRUPTED, "the engine is being stopped")
    spec = Spec.decode(command.call.spec)
    for share in command.shares:
        engine.share(share)
    read = {name: await _input(engine, program, name) for name in command.call.input_ids}
    inputs = [read[edge.variable_id] for edge in command.call.inputs]
    await engine.slot(program)
    engine.report(program.ref, events.AttemptStarted(program.ref))
    prompt = texts.prompt_of(spec.function, inputs)
    for place, output in enumerate(spec.outputs):
        named = Output(command.call.output_ids[place], output.pieces, output.sampled)
        prompt += await _Generation(
            engine,
            program,
            spec,
            prompt,
            named,
            fails=bool(spec.fails) and place == spec.fails_after % len(spec.outputs),
        ).text()
    return events.AttemptDone(program.ref, (), Usage(len(prompt), 0, len(prompt)))


async def _input(engine: SimEngine, program: Program, variable_id: str) -> str:
    if any(name == variable_id for name, _ in program.command.pending):
        return await _stream(engine, program, variable_id)
    for _ in range(MISSING_RETRIES):
        record = await _read(engine, program, variable_id)
        if record is not None:
            return _text(record)
        await sleep(50)
    raise Fault(errors.VALUE_UNAVAILABLE, f"{variable_id} is not on the bus")


async def _read(engine: SimEngine, program: Program, variable_id: str) -> FinalRecord | None:
    while True:
        try:
            return await engine.bus.read(program.ref.session_id, variable_id)
        except Fault:
            await sleep(100)


async def _stream(engine: SimEngine, program: Program, variable_id: str) -> str:
    """An input that is still being made: what is prefilled of it is what it is in the end."""
    feed = Feed(program.process, engine.bus, program.ref.session_id)
    cursor = feed.cursor(variable_id)
    filled = ""
    while isinstance(news := await feed.next(variable_id, cursor), Chunk):
        filled += news.text
    feed.close()
    text = _text(news.record)
    promise(text == filled, "stream rewound", f"{program.ref} filled {filled!r} for {variable_id} = {text!r}")
    return text


def _text(record: FinalRecord) -> str:
    if record.text is None:
        raise Fault(errors.UPSTREAM_FAILED, f"{record.variable_id} has no value")
    return record.text


class _Generation:
    """One output on its way."""

    def __init__(
        self, engine: SimEngine, program: Program, spec: Spec, prompt: str, output: Output, *, fails: bool
    ) -> None:
        self._engine = engine
        self._program = program
        self._spec = spec
        self._prompt = prompt
        self._output = output
        self._fails = fails
        self._said = ""

    async def text(self) -> str:
        """Says it, and returns once its end is on the bus."""
        if any(made.id == self._output.variable_id for made in self._program.command.made):
            record = await _read(self._engine, self._program, self._output.variable_id)
            if record is None:
                raise Fault(errors.VALUE_UNAVAILABLE, f"{self._output.variable_id} is not on the bus")
            return _text(record)
        first = self._resume()
        for index in range(first, self._output.pieces):
            await self._fail_if_due(index)
            await sleep(self._spec.step_ms * self._engine.slowness)
            self._say(texts.piece_of(self._prompt, self._output, index, self._program.ref.attempt), index)
        await self._fail_if_due(self._output.pieces)
        await self._publish()
        return self._said

    def _resume(self) -> int:
        """The piece that comes next; what was streamed before is taken as it is."""
        found = [s for s in self._program.command.resume if s.variable_id == self._output.variable_id]
        if not found or not found[0].data:
            return 0
        if not self._spec.resumable:
            raise Fault(errors.NOT_RESUMABLE, "the engine can't go on behind a text")
        streamed, index = found[0].data.decode(), 0
        while len(self._said) < len(streamed):
            piece = texts.piece_of(self._prompt, self._output, index, 0)
            taken = streamed[len(self._said) : len(self._said) + len(piece)]
            fits = taken == piece or (self._output.sampled and index > 0)
            promise(fits, "wrong resume", f"{self._program.ref} goes on behind {streamed!r}")
            self._said += taken
            index += 1
        return index

    async def _fail_if_due(self, index: int) -> None:
        spec = self._spec
        due = self._fails and index == min(spec.fails_after, self._output.pieces)
        if due and self._program.ref.attempt <= spec.fails_attempts:
            raise Fault(KINDS[spec.fails], "the call fails here")

    def _say(self, piece: str, index: int) -> None:
        ref, writer = self._program.ref, self._engine.writer
        offset = len(self._said.encode())
        self._engine.bus.send(
            writer, ref.session_id, Delta(self._output.variable_id, ref.call_id, ref.attempt, offset, piece)
        )
        if index == 0:
            self._engine.report(ref, events.AttemptStreaming(ref, self._output.variable_id))
        self._said += piece

    async def _publish(self) -> None:
        ref = self._program.ref
        record = FinalRecord(
            self._output.variable_id, ref.call_id, ref.attempt, text=self._said, finish_reason="stop"
        )
        while True:
            try:
                if await self._engine.bus.put(ref.session_id, record, self._engine.writer):
                    return
            except Fault:
                await sleep(250)
                continue
            self._engine.refused(shard_of(ref.session_id))
            raise Fault(errors.ENGINE_LOST, "the bus refused its output")
