"""The marks this engine's writes bear, by shard; see `parrot_runtime.values.fences`."""

from __future__ import annotations

from collections.abc import Callable

from parrot_runtime.ids import is_session_id, shard_of
from parrot_runtime.values.fences import Mark


class Marks:
    """What its managers told this engine to mark its writes with."""

    def __init__(self) -> None:
        self._marks: dict[int, Mark] = {}
        self._refused: set[int] = set()
        self.on_refused: Callable[[int], None] = lambda shard: None

    def of(self, session_id: str) -> Mark | None:
        """What is written to a session now bears this; None where no manager told of any."""
        return self._marks.get(shard_of(session_id)) if is_session_id(session_id) else None

    def put(self, mark: Mark) -> bool:
        """Takes a mark up; whether what bears the one before it is refused from now on."""
        before = self._marks.get(mark.shard)
        self._marks[mark.shard] = mark
        if before != mark:
            self._refused.discard(mark.shard)
        return before is not None and before != mark

    def refuse(self, mark: Mark) -> None:
        """Notes that the bus refused what bore a mark; tells once a shard, while no other mark came."""
        if self._marks.get(mark.shard) == mark and mark.shard not in self._refused:
            self._refused.add(mark.shard)
            self.on_refused(mark.shard)
