"""The bus: a stream of deltas a session, a last final a variable, and the fence of lost engines.

What it took stands, in order. What it tells readers at once may come late, twice or never; they
look for what they miss in the stream, as `parrot_runtime.values.reader` does on the real one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of
from parrot_runtime.values.finals import FinalRecord
from tests.simulation.dice import Dice
from tests.simulation.kernel import Process, sleep
from tests.simulation.record import Record
from tests.simulation.violations import promise


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that was written; the fields are those of `values.v1.Delta`."""

    variable_id: str
    call_id: str
    attempt: int
    offset_bytes: int
    text: str


Heard = Delta | FinalRecord
Listener = Callable[[Heard], None]


@dataclass(slots=True)
class Writer:
    """An engine's connection: what it sends arrives in order, marked with the epochs it knows."""

    engine_id: str
    epochs: dict[int, int]
    arrived_ms: int = 0


class _Text:
    """All that was streamed of a variable, as a reader sees it who misses nothing."""

    __slots__ = ("attempt", "data", "ended")

    def __init__(self) -> None:
        self.data = b""
        self.attempt = 0
        self.ended = False

    def add(self, session_id: str, delta: Delta) -> None:
        """Takes in a delta; what lies before its offset is lost or not yet there."""
        if delta.attempt < self.attempt or delta.offset_bytes > len(self.data):
            return
        self.attempt = delta.attempt
        new = delta.text.encode()
        old = self.data[delta.offset_bytes : delta.offset_bytes + len(new)]
        where = f"{session_id} {delta.variable_id} byte {delta.offset_bytes} attempt {delta.attempt}"
        promise(new.startswith(old), "stream rewound", f"{where}: {old!r} becomes {new!r}")
        self.data += new[len(old) :]

    def finish(self, session_id: str, record: FinalRecord) -> None:
        """Takes in the whole: it goes on from what was streamed, and is said once."""
        whole = (record.text or "").encode()
        where = f"{session_id} {record.variable_id} final of attempt {record.attempt}"
        promise(whole.startswith(self.data), "stream rewound", f"{where}: {self.data!r} becomes {whole!r}")
        promise(
            not self.ended or whole == self.data, "stream rewound", f"{where}: {whole!r} after {self.data!r}"
        )
        self.data, self.ended = whole, True


class Bus:
    """What lies on it outlives everybody."""

    def __init__(self, process: Process, dice: Dice, record: Record) -> None:
        self._process = process
        self._dice = dice
        self._record = record
        self._deltas: dict[str, list[Delta]] = {}
        self._texts: dict[tuple[str, str], _Text] = {}
        self._finals: dict[tuple[str, str], FinalRecord] = {}
        self._epochs: dict[tuple[str, int], int] = {}
        self._listeners: dict[str, list[Listener]] = {}
        self.down_until_ms = 0
        self.loss = 0.0

    @property
    def down(self) -> bool:
        """Whether it takes and tells nothing."""
        return self._process.clock.now_ms < self.down_until_ms

    async def read_epochs(self, engine_id: str, shards: Sequence[int]) -> dict[int, int]:
        """What an engine marks its writes with.

        Raises:
            Fault: `unavailable`.
        """
        await self._trip()
        return {shard: self.epoch(engine_id, shard) for shard in shards}

    def epoch(self, engine_id: str, shard: int) -> int:
        """The fence of an engine in a shard."""
        return self._epochs.get((engine_id, shard), 0)

    async def fence(self, engine_id: str, shards: Sequence[int]) -> None:
        """From here on refuses what an engine writes to shards with the epochs it has.

        Raises:
            Fault: `unavailable`.
        """
        await self._trip()
        for shard in shards:
            self._epochs[engine_id, shard] = self._epochs.get((engine_id, shard), 0) + 1
        self._record.note("bus", "fenced", engine_id, tuple(shards))

    def send(self, writer: Writer, session_id: str, delta: Delta) -> None:
        """Sends a delta on its way; nobody hears whether it came."""
        epoch = self._epoch_of(writer, session_id)
        self._process.after(self._delay(writer), self._take, writer.engine_id, epoch, session_id, delta)

    async def put(self, session_id: str, record: FinalRecord, writer: Writer | None = None) -> bool:
        """Publishes an end, behind what its writer sent before; False when it is fenced.

        Raises:
            Fault: `unavailable`; it may have come all the same.
        """
        epoch = self._epoch_of(writer, session_id)
        await sleep(self._delay(writer) if writer is not None else self._dice.between(1, 8))
        self._check_up()
        if writer is not None and epoch != self.epoch(writer.engine_id, shard_of(session_id)):
            return False
        self._keep(session_id, record)
        await sleep(self._dice.between(0, 4))
        if self._dice.chance(self.loss):
            raise _unavailable()
        return True

    async def read(self, session_id: str, variable_id: str) -> FinalRecord | None:
        """A variable's end.

        Raises:
            Fault: `unavailable`.
        """
        await self._trip()
        return self._finals.get((session_id, variable_id))

    async def replay(self, session_id: str) -> list[Delta]:
        """All deltas of a session so far.

        Raises:
            Fault: `unavailable`.
        """
        await self._trip()
        return list(self._deltas.get(session_id, ()))

    def listen(self, session_id: str, listener: Listener) -> None:
        """Tells of what comes from now on, unless that is lost."""
        self._listeners.setdefault(session_id, []).append(listener)

    def unlisten(self, session_id: str, listener: Listener) -> None:
        """Tells no more."""
        self._listeners[session_id].remove(listener)

    def streamed(self, session_id: str, variable_id: str) -> bytes:
        """What a reader who misses nothing has of a variable's deltas."""
        text = self._texts.get((session_id, variable_id))
        return text.data if text is not None else b""

    def _delay(self, writer: Writer) -> int:
        now_ms = self._process.clock.now_ms
        writer.arrived_ms = max(writer.arrived_ms, now_ms + self._dice.between(0, 6))
        return writer.arrived_ms - now_ms

    def _epoch_of(self, writer: Writer | None, session_id: str) -> int:
        return writer.epochs.get(shard_of(session_id), 0) if writer is not None else 0

    async def _trip(self) -> None:
        await sleep(self._dice.between(1, 6))
        self._check_up()

    def _check_up(self) -> None:
        if self.down or self._dice.chance(self.loss):
            raise _unavailable()

    def _take(self, engine_id: str, epoch: int, session_id: str, delta: Delta) -> None:
        if self.down or self._dice.chance(self.loss):
            return
        if epoch != self.epoch(engine_id, shard_of(session_id)):
            return
        self._text(session_id, delta.variable_id).add(session_id, delta)
        self._deltas.setdefault(session_id, []).append(delta)
        self._tell(session_id, delta)

    def _keep(self, session_id: str, record: FinalRecord) -> None:
        key = (session_id, record.variable_id)
        if record.text is not None:
            self._text(session_id, record.variable_id).finish(session_id, record)
        if self._finals.get(key) == record:
            return
        self._finals[key] = record
        self._record.note("bus", "final", session_id, record)
        self._tell(session_id, record)

    def _text(self, session_id: str, variable_id: str) -> _Text:
        return self._texts.setdefault((session_id, variable_id), _Text())

    def _tell(self, session_id: str, heard: Heard) -> None:
        for listener in self._listeners.get(session_id, ()):
            for _ in range(self._copies()):
                late = self._dice.chance(self.loss)
                delay_ms = self._dice.between(200, 1_500) if late else self._dice.between(0, 5)
                self._process.after(delay_ms, listener, heard)

    def _copies(self) -> int:
        if not self.loss or not self._dice.chance(2 * self.loss):
            return 1
        return 2 * self._dice.between(0, 1)


def _unavailable() -> Fault:
    return Fault(errors.UNAVAILABLE, "the bus does not answer", retry_after_ms=100)
