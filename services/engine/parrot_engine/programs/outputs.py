"""An output on its way out: streamed as it comes, published whole at its end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from parrot_engine.backends.base import Step
from parrot_engine.programs.laps import Laps
from parrot_engine.programs.marks import Marks
from parrot_engine.programs.rollouts import Rollouts
from parrot_engine.programs.script import transformed
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.values.fences import Mark
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.reader import Feeds
from parrot_runtime.values.writer import DeltaWriter

Report = Callable[[engine_pb2.AttachRequest], None]
"""Takes an event for the manager; never waits."""


@dataclass(frozen=True, slots=True)
class Press:
    """What outputs are published with."""

    finals: Finals
    writer: DeltaWriter
    feeds: Feeds
    report: Report
    marks: Marks = field(default_factory=Marks)


@dataclass(slots=True)
class OutputStream:
    """One output of one attempt.

    Readers in this process hear it ahead of the bus: the feed they read is told directly.

    Attributes:
        streamed: text of it that an earlier attempt streamed.
        rollouts: keeps its tokens and logprobs; None where none were asked for.
        mark: what the attempt writes bears it; None: it is not fenced.
        token_ids: generated so far.
    """

    press: Press
    ref: engine_pb2.AttemptRef
    sink: engine_pb2.VariableSink
    streamed: str = ""
    rollouts: Rollouts | None = None
    mark: Mark | None = None
    token_ids: list[int] = field(default_factory=list)
    _pieces: list[str] = field(default_factory=list)
    _size_bytes: int = 0
    _sent: bool = False

    def __post_init__(self) -> None:
        if self.streamed:
            self._pieces.append(self.streamed)
            self._size_bytes = len(self.streamed.encode())

    def add(self, step: Step) -> None:
        """Sends what a step added.

        Raises:
            Fault: `too_large`, when the output exceeds what a value may be.
        """
        self.token_ids += step.token_ids
        if self.rollouts is not None:
            self.rollouts.add(step)
        if not step.text:
            return
        # An output that is transformed at its end is not streamed. The last step's text goes with the
        # value, which follows at once: a consumer then knows that nothing more comes.
        if not self.sink.transforms and step.finish_reason is None:
            self._send(step.text)
        self._pieces.append(step.text)
        self._size_bytes += len(step.text.encode())
        if self._size_bytes > limits.VALUE_BYTES:
            raise Fault(
                errors.TOO_LARGE,
                f"the output exceeds {limits.VALUE_BYTES:,} bytes; lower its max_tokens",
                variable_id=self.sink.variable_id,
            )

    @property
    def generated_text(self) -> str:
        """What this attempt generated of its text."""
        return "".join(self._pieces)[len(self.streamed) :]

    async def finish(self, finish_reason: str, laps: Laps | None = None) -> engine_pb2.OutputEnd:
        """Publishes the value; returns once the bus has it.

        Args:
            laps: told how long that takes; None: it takes place beside what is told.

        Raises:
            Fault: `transform_failed`, or `unavailable` when the bus does not take it.
            FencedError: the engine was given up.
        """
        sink, press = self.sink, self.press
        text = await transformed("".join(self._pieces), sink.transforms, sink.variable_id)
        if laps is not None:
            laps.transformed()
        record = FinalRecord(
            variable_id=sink.variable_id,
            call_id=self.ref.call_id,
            attempt=self.ref.attempt,
            text=text,
            finish_reason=finish_reason,
        )
        await press.writer.flush(sink.delta_subject)
        if self.rollouts is not None:
            await self.rollouts.publish(press.finals, sink.final_subject, self.mark)
        await press.finals.publish(sink.final_subject, record, mark=self.mark)
        # Not before: nothing may be made of a value that the bus does not have.
        if (feed := press.feeds.open_feed(self.ref.session_id)) is not None:
            feed.resolve(record)
        if laps is not None:
            laps.published(sink.variable_id)
        return engine_pb2.OutputEnd(
            variable_id=sink.variable_id,
            size_bytes=len(text.encode()),
            finish_reason=finish_reason,
        )

    def _send(self, text: str) -> None:
        press, sink = self.press, self.sink
        if not self._pieces:
            event = engine_pb2.AttemptStreaming(ref=self.ref, variable_id=sink.variable_id)
            press.report(engine_pb2.AttachRequest(streaming=event))
        if (feed := press.feeds.open_feed(self.ref.session_id)) is not None:
            feed.offer(sink.variable_id, self.ref.attempt, self._size_bytes, text)
        press.writer.append(
            sink.delta_subject,
            variable_id=sink.variable_id,
            call_id=self.ref.call_id,
            attempt=self.ref.attempt,
            offset_bytes=self._size_bytes,
            text=text,
            mark=self.mark,
            # Whoever reads waits for the first text above all.
            hurried=not self._sent,
        )
        self._sent = True
