"""Reads what the deltas' stream keeps of a subject."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Final

from nats.js import api

from parrot_runtime.values import subjects
from parrot_runtime.values.bus import Bus

if TYPE_CHECKING:
    from nats.aio.msg import Msg

NEXT_WITHIN_S: Final = 5.0


async def replayed(bus: Bus, subject: str, until: int, *, first: int = 0) -> AsyncGenerator[Msg]:
    """The messages of a subject, in order, to the sequence `until`; from `first` on, or from the oldest.

    A replica that reads them out waits for what it does not have yet. To be closed by who reads them, for
    example with `aclosing`.

    Raises:
        one of TROUBLE: the bus does not give them now.
    """
    config = (
        api.ConsumerConfig(deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=first)
        if first
        else api.ConsumerConfig(deliver_policy=api.DeliverPolicy.ALL)
    )
    subscription = await bus.js.subscribe(
        subject, stream=subjects.DELTA_STREAM, ordered_consumer=True, config=config
    )
    try:
        at = 0
        while at < until:
            message = await subscription.next_msg(timeout=NEXT_WITHIN_S)
            at = message.metadata.sequence.stream
            yield message
    finally:
        await subscription.unsubscribe()
