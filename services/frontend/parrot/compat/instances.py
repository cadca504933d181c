"""Native calls in the bodies of maps and loops: the server makes instances, which are served as they come."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from parrot import watching
from parrot.compat.worker import PAUSE_S, Work, serve
from parrot.errors import RequestRefused, ServerUnavailable
from parrot.watching import SessionEvent

if TYPE_CHECKING:
    from parrot.session import Session

Place = tuple[str, str]
"""A block's id, and the name of a call in its body."""

INSTANCES: Final = "instances"
_GONE: Final = 410

_log = logging.getLogger("parrot")


class Instances:
    """Of one session: what its blocks' native calls do, and the instances that came.

    To be used on the background loop only. What came before it was known what it does waits for that.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._works: dict[Place, Work] = {}
        self._seen: set[str] = set()
        self._waiting: dict[Place, list[str]] = {}
        session._spawn(self._watch())

    def know(self, block_id: str, work: Work) -> None:
        """What the calls of this name in a block's body do."""
        place = (block_id, work.name)
        self._works[place] = work
        for call_id in self._waiting.pop(place, []):
            self._session._spawn(serve(self._session, call_id, work))

    def see(self, event: SessionEvent) -> None:
        """An instance is served, once, from when it is heard of."""
        block_id, call_id = event.data.get("block_id"), str(event.data.get("id"))
        if event.kind != "call" or not block_id or call_id in self._seen:
            return
        self._seen.add(call_id)
        place = (str(block_id), str(event.data.get("name")))
        work = self._works.get(place)
        if work is None:
            self._waiting.setdefault(place, []).append(call_id)
        else:
            self._session._spawn(serve(self._session, call_id, work))

    async def _watch(self) -> None:
        path = f"/v1/sessions/{self._session.id}/events"
        while True:
            try:
                async for event in watching.events(self._session._client, path, None):
                    self.see(event)
                return
            except ServerUnavailable:
                await asyncio.sleep(PAUSE_S)
            except RequestRefused as refusal:
                # What was missed is in the snapshot that a new stream begins with.
                if refusal.status != _GONE:
                    _log.warning("the session's events can't be had, nor its native calls run: %s", refusal)
                    return


def serve_block(session: Session, block_id: str, work: Work) -> None:
    """Runs the instances that a native call of a block's body has. On the background loop only."""
    if INSTANCES not in session._beside:
        session._beside[INSTANCES] = Instances(session)
    session._beside[INSTANCES].know(block_id, work)
