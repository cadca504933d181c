"""Writes variables to the bus as an engine does."""

from __future__ import annotations

from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import FinalRecord, Finals
from parrot_runtime.values.subjects import SessionSubjects
from parrot_runtime.values.writer import DeltaWriter


class Pen:
    """Writes one variable."""

    def __init__(self, bus: Bus, session_id: str, variable_id: str) -> None:
        self._bus = bus
        self._names = SessionSubjects("default", session_id)
        self._variable_id = variable_id
        self.text = ""

    async def write(self, *pieces: str) -> None:
        """Adds text, one delta a piece."""
        async with DeltaWriter(self._bus, "e-1") as writer:
            for piece in pieces:
                writer.append(
                    self._names.delta,
                    variable_id=self._variable_id,
                    call_id="c-1",
                    attempt=1,
                    offset_bytes=len(self.text.encode()),
                    text=piece,
                )
                self.text += piece
                await writer.flush()
        await self._bus.client.flush()

    async def end(self, record: FinalRecord | None = None) -> None:
        """Publishes the end: by default, the text that was written."""
        final = record or FinalRecord(self._variable_id, "c-1", 1, text=self.text)
        await Finals(self._bus).publish(self._names.final(self._variable_id), final)
