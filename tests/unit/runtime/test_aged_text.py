"""Text whose beginning has gone from the bus with its age: who has that goes on, who comes late waits."""

from __future__ import annotations

from typing import Any, cast

import pytest

from parrot_proto.values.v1 import values_pb2
from parrot_runtime.ids import new_session_id
from parrot_runtime.values.finals import FinalRecord
from parrot_runtime.values.reader import Chunk, End, SessionFeed
from parrot_runtime.values.subjects import SessionSubjects

pytestmark = pytest.mark.anyio
TEXT = "abc déf ghi"
BYTES = TEXT.encode()


def feed_from(offset: int, *, aged: bool) -> SessionFeed:
    """A feed whose first message of `y` begins at an offset."""
    feed = SessionFeed(cast("Any", None), SessionSubjects("default", new_session_id()))
    delta = values_pb2.Delta(variable_id="y", attempt=1, offset_bytes=offset, text=BYTES[offset:9].decode())
    feed._take(values_pb2.StepDeltas(deltas=[delta]).SerializeToString(), aged=aged)
    return feed


async def test_who_has_the_beginning_goes_on_behind_it() -> None:
    feed = feed_from(4, aged=True)
    cursor = feed.cursor("y", 5)
    assert await cursor.next(0.01) == Chunk(5, BYTES[5:9].decode())
    feed.offer("y", 1, 9, BYTES[9:].decode())
    assert await cursor.next(0.01) == Chunk(9, BYTES[9:].decode())


async def test_who_comes_late_gets_all_of_it_at_its_end() -> None:
    feed = feed_from(4, aged=True)
    cursor = feed.cursor("y")
    assert await cursor.next(0.01) is None
    feed.resolve(FinalRecord("y", "c-1", 1, text=TEXT))
    assert await cursor.next(0.01) == Chunk(0, TEXT)
    assert isinstance(await cursor.next(0.01), End)


async def test_text_behind_a_message_that_was_lost_is_not_shown() -> None:
    feed = feed_from(4, aged=False)
    assert await feed.cursor("y", 4).next(0.01) is None


async def test_an_offset_within_what_is_left_is_reached_and_one_beyond_it_is_not() -> None:
    feed = feed_from(4, aged=True)
    assert await feed.reach_bytes("y", 9) is None
    feed._caught_up = True
    feed.catch_up = lambda: None  # type: ignore[method-assign]
    assert await feed.reach_bytes("y", 10) == 9
