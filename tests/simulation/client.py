"""Clients: they open sessions, submit, read, cancel and give up, through gateways that route and retry."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.reader import Chunk
from tests.simulation.apps import PlannedApp, PlannedBatch
from tests.simulation.asking import Asking
from tests.simulation.intake import Intake
from tests.simulation.kernel import Process, sleep
from tests.simulation.reader import Feed
from tests.simulation.violations import promise
from tests.simulation.workers import Worker

if TYPE_CHECKING:
    from parrot_runtime.values.finals import FinalRecord
    from tests.simulation.world import World

T = TypeVar("T")
WORKERS = 2


class Client:
    """One application's client, with the gateway it talks through.

    Attributes:
        accepted: batches it heard are accepted.
        ended: what its readers were told at the end, by variable.
        refused: what a batch was refused with, for good.
        workers: who runs its native calls, if it has any.
    """

    def __init__(self, world: World, app: PlannedApp) -> None:
        self.app = app
        self.accepted: list[PlannedBatch] = []
        self.ended: dict[str, FinalRecord] = {}
        self.refused: Fault | None = None
        self.opened = False
        self.done = False
        self._world = world
        self._process = Process(world.clock, f"client {app.session_id}")
        self._dice = world.dice.apart(app.session_id)
        self._asking = Asking(world, app.session_id, self._process, self._dice)
        self._reading: dict[str, None] = {}
        self.workers: list[Worker] = []

    def start(self) -> None:
        """Does what its plan says, from now on."""
        self._process.spawn(self._run)
        if self.app.natives:
            self.workers = [Worker(self._world, self, number) for number in range(WORKERS)]

    @property
    def waits_for(self) -> str:
        """What of it has not come to its end; empty: nothing."""
        if not self.done:
            return f"{self.app.session_id} is not submitted"
        unread = [f"reader of {name}" for name in self._reading]
        waiting = unread + self._world.audit.unfinished(self.app.session_id)
        return f"{self.app.session_id}: {', '.join(waiting)}" if waiting else ""

    def finish(self) -> None:
        """Ends the session, which has nothing left to do."""
        if self.opened:
            self._process.spawn(self.close)

    async def _run(self) -> None:
        app = self.app
        await sleep(app.starts_ms)
        if not app.at_once:
            await self._ask(lambda intake: intake.open_session(app))
            self._on_opened()
        for batch in app.batches:
            await sleep(batch.after_ms)
            if not await self._submit(batch):
                break
            self._start_readers(batch)
        self.done = True

    def _on_opened(self) -> None:
        self.opened = True
        for after_ms, variable_id, subtree in self.app.cancels:
            self._process.spawn(self._cancel, after_ms, variable_id, subtree)
        if self.app.closes_ms:
            self._process.spawn(self._close_after, self.app.closes_ms)

    def _start_readers(self, batch: PlannedBatch) -> None:
        for variable_id, after_ms, dies in self.app.reads:
            if variable_id in batch.outputs:
                self._reading[variable_id] = None
                self._process.spawn(self._read, variable_id, after_ms, dies)

    async def _submit(self, batch: PlannedBatch) -> bool:
        try:
            ids = await self._ask(lambda intake: self._submitting(intake, batch, batch.digest()))
        except Fault as fault:
            self._world.record.note(self._process.name, "refused", fault.kind.type, fault.message)
            self.refused = fault
            return False
        if not self.opened:
            self._on_opened()
        self.accepted.append(batch)
        self._world.audit.accepted(self.app.session_id, ids)
        if batch.again:
            await self._submit_again(batch, ids)
        return True

    async def _submit_again(self, batch: PlannedBatch, ids: list[str]) -> None:
        try:
            again = await self._ask(lambda intake: self._submitting(intake, batch, batch.digest()))
        except Fault as fault:
            promise(self._is_over(fault), "sent twice, run twice", str(fault))
            return
        promise(
            again == ids, "sent twice, run twice", f"{self.app.session_id} {batch.key}: {ids} and {again}"
        )
        try:
            await self._ask(lambda intake: self._submitting(intake, batch, b"another body"))
        except Fault as fault:
            fits = fault.kind is errors.IDEMPOTENCY_CONFLICT or self._is_over(fault)
            promise(fits, "key reused", str(fault))
        else:
            promise(
                kept=False, which="key reused", why=f"{self.app.session_id} {batch.key} took another body"
            )

    def _submitting(
        self, intake: Intake, batch: PlannedBatch, digest: bytes
    ) -> Coroutine[Any, Any, list[str]]:
        opens = self.app.at_once and batch is self.app.batches[0]
        return (intake.open_with_calls if opens else intake.submit)(self.app, batch, digest)

    def _is_over(self, fault: Fault) -> bool:
        """Whether a fault says that the session has ended, or was deleted."""
        return fault.kind is errors.SESSION_ENDED or (self.app.deletes and fault.kind is errors.NOT_FOUND)

    async def _cancel(self, after_ms: int, variable_id: str, subtree: bool) -> None:
        await sleep(after_ms)
        try:
            await self._ask(lambda intake: intake.cancel(self.app, variable_id, subtree=subtree))
        except Fault as fault:
            self._world.record.note(self._process.name, "cancel refused", fault.kind.type)

    async def _close_after(self, after_ms: int) -> None:
        await sleep(after_ms)
        await self.close()

    async def close(self) -> None:
        """Ends the session."""
        deletes = self.app.deletes
        try:
            await self._ask(lambda intake: intake.delete(self.app) if deletes else intake.close(self.app))
        except Fault as fault:
            promise(fault.kind in (errors.NOT_FOUND, errors.SESSION_ENDED), "close", str(fault))

    async def _read(self, variable_id: str, after_ms: int, dies: bool) -> None:
        await sleep(after_ms)
        await self._want(variable_id)
        transcript = b""
        while variable_id not in self.ended:
            gateway = Process(self._world.clock, "gateway")
            feed = Feed(gateway, self._world.bus, self.app.session_id)
            cursor = feed.cursor(variable_id, len(transcript))
            pieces = self._dice.between(1, 4) if dies else 1_000_000
            while pieces:
                news = await feed.next(variable_id, cursor)
                if not isinstance(news, Chunk):
                    self._end(variable_id, transcript, news.record)
                    break
                fits = news.offset_bytes == len(transcript)
                promise(fits, "stream rewound", f"{variable_id} at {len(transcript)}: {news}")
                transcript += news.text.encode()
                pieces -= 1
            dies = False
            feed.close()
            gateway.kill()
        del self._reading[variable_id]

    def _end(self, variable_id: str, transcript: bytes, record: FinalRecord) -> None:
        if record.text is not None:
            where = f"reader of {self.app.session_id} {variable_id}"
            fits = transcript == record.text.encode()
            promise(fits, "stream rewound", f"{where} read {transcript!r} of {record.text!r}")
        self.ended[variable_id] = record

    async def _want(self, variable_id: str) -> None:
        try:
            await self._ask(lambda intake: intake.want(self.app, variable_id))
        except Fault as fault:
            self._world.record.note(self._process.name, "want refused", fault.kind.type, fault.message)

    async def _ask(self, question: Callable[[Intake], Coroutine[Any, Any, T]]) -> T:
        return await self._asking.ask(question)
