"""What this manager holds, as far as it knows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from parrot_manager.store.base import refused
from parrot_manager.store.leases import Peer, Standing
from parrot_runtime.ids import is_session_id, shard_of


class Shards:
    """The shards of this manager, and who else there is.

    A shard is held from its claim on: its sessions may be written, under its epoch. It is served once
    all of them are in memory, until it is handed over: only then its clients are listened to.
    """

    def __init__(self) -> None:
        self._held: dict[int, int] = {}
        self._served: set[int] = set()
        self.standing = Standing((), ())

    @property
    def held(self) -> Mapping[int, int]:
        """The epochs of the shards that are held."""
        return self._held

    @property
    def served(self) -> list[int]:
        """The shards whose clients are listened to."""
        return sorted(self._served)

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The managers that lived when last looked, this one included."""
        return self.standing.peers

    def hold(self, claimed: Mapping[int, int]) -> None:
        """Holds shards from here on."""
        self._held.update(claimed)

    def epoch_held(self, session_id: str) -> int | None:
        """The epoch under which a session's shard is held; None: it is not, or that is no session's id."""
        return self._held.get(shard_of(session_id)) if is_session_id(session_id) else None

    def serve(self, shards: Iterable[int]) -> None:
        """Serves those of the shards that are still held."""
        self._served.update(shard for shard in shards if shard in self._held)

    def stop_serving(self, shards: Collection[int]) -> None:
        """Holds shards without listening to their clients."""
        self._served.difference_update(shards)

    def drop(self, shards: Collection[int]) -> None:
        """Holds shards no longer."""
        self.stop_serving(shards)
        for shard in shards:
            self._held.pop(shard, None)

    def holds(self, shard: int, epoch: int) -> bool:
        """Whether a shard is held, under that very epoch."""
        return self._held.get(shard) == epoch

    def serves(self, session_id: str) -> bool:
        """Whether a session, if there is one of that id, is in memory here."""
        return is_session_id(session_id) and shard_of(session_id) in self._served

    def served_or_refused(self) -> list[int]:
        """The shards a new session may be put in.

        Raises:
            Fault: `wrong_manager`, when there are none.
        """
        if not self._served:
            raise refused()
        return self.served

    def check(self, session_id: str, epoch: int | None = None) -> None:
        """Passes over what is no session's id.

        Raises:
            Fault: `wrong_manager`, when another manager serves the session, or one has since `epoch`.
        """
        if not is_session_id(session_id):
            return
        shard = shard_of(session_id)
        if epoch is None:
            if shard not in self._served:
                raise refused(session_id)
        elif not self.holds(shard, epoch):
            raise refused(session_id)

    def epoch_of(self, session_id: str) -> int:
        """The epoch under which a session is served.

        Raises:
            Fault: `wrong_manager`, when another manager serves it.
        """
        self.check(session_id)
        return self._held[shard_of(session_id)]
