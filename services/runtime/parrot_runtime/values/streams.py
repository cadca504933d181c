"""The two streams that values live in: how they are kept, and that they are there.

How many replicas there are is that of the stream with more, where they differ (while they are raised, say):
what is right for replicas is right without, and not the other way round.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
from nats.js import JetStreamContext, api
from nats.js.errors import APIError, BadRequestError, NotFoundError

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values import subjects
from parrot_runtime.values.connection import TROUBLE

DEDUPE_S: Final = 120
RETRY_S: Final = 0.25
UNCLUSTERED: Final = 10074
"""The server's code for replicas that a single server can't keep."""
REPLICATED_ROOT: Final = "sv.replicated"
"""Nothing is written there. A version that knows no replicas would set them back to one; from streams with
subjects that it does not know it keeps its hands."""

log = structlog.get_logger()


async def ensure(js: JetStreamContext, url: str, replicas: int, timeout_s: float) -> int:
    """Makes the streams, or brings them up to date; how many replicas of them there are.

    Replicas are added and never taken away: a service with an older setting that starts would take them
    from everybody.

    Raises:
        Fault: `unavailable`, when the servers don't keep them within `timeout_s`, such as before enough
            of them are there.
    """
    found = [await _patiently(_ensured(js, config), url, timeout_s) for config in configs(replicas)]
    if found != [replicas, replicas]:
        log.warning("streams have other replicas than the setting says; they stay", found=found, set=replicas)
    return max(found)


async def await_made(js: JetStreamContext, url: str, timeout_s: float) -> int:
    """Returns once a manager has made the streams; how many replicas of them there are.

    Raises:
        Fault: `unavailable`, when none has within `timeout_s`.
    """
    return max([await _patiently(_replicas_of(js, name), url, timeout_s) for name in subjects.STREAMS])


async def replicas(js: JetStreamContext) -> int:
    """How many replicas there are of what is kept.

    Raises:
        an error of the library: the bus does not say now.
    """
    return max([await _replicas_of(js, name)() for name in subjects.STREAMS])


def configs(replicas: int) -> list[api.StreamConfig]:
    """How the streams are to be."""

    def republish(root: str) -> api.RePublish:
        return api.RePublish(src=f"{root}.>", dest=f"{subjects.LIVE_ROOT}.{root}.>")

    # Of two roots, in the one order they have: the epochs' few messages come along.
    everything = api.RePublish(src=">", dest=f"{subjects.LIVE_ROOT}.>")

    deltas = api.StreamConfig(
        name=subjects.DELTA_STREAM,
        subjects=[
            f"{root}.>" for root in (subjects.DELTA_ROOT, subjects.STATE_ROOT, subjects.DELTA_EPOCH_ROOT)
        ],
        storage=api.StorageType.FILE,
        duplicate_window=1,
        republish=everything,
    )
    finals = api.StreamConfig(
        name=subjects.FINAL_STREAM,
        subjects=[f"{subjects.FINAL_ROOT}.>", f"{subjects.FINAL_EPOCH_ROOT}.>"],
        storage=api.StorageType.FILE,
        max_msgs_per_subject=1,
        duplicate_window=DEDUPE_S,
        republish=republish(subjects.FINAL_ROOT),
    )
    for config in (deltas, finals):
        config.num_replicas = replicas
        config.allow_direct = config.allow_msg_ttl = config.allow_rollup_hdrs = True
        if replicas > 1:
            config.allow_atomic = True
            config.subjects = [*(config.subjects or ()), f"{REPLICATED_ROOT}.{config.name}"]
    return [deltas, finals]


def _ensured(js: JetStreamContext, config: api.StreamConfig) -> Callable[[], Awaitable[int]]:
    async def ensured() -> int:
        try:
            await js.add_stream(config)
        except BadRequestError:
            return await _brought_up_to_date(js, config)
        return config.num_replicas or 1

    return ensured


async def _brought_up_to_date(js: JetStreamContext, config: api.StreamConfig) -> int:
    kept = (await js.stream_info(config.name or "")).config
    has, wanted = kept.num_replicas or 1, config.num_replicas or 1
    if has > wanted:
        # As they are, but for what is new in this version.
        config = next(item for item in configs(has) if item.name == config.name)
    # One with more subjects is a later version's, whose processes would lose them.
    if set(kept.subjects or ()) > set(config.subjects or ()):
        return has
    await js.update_stream(config)
    if has < wanted:
        log.info("replicas added", stream=config.name, before=has, now=wanted)
    return max(has, wanted)


def _replicas_of(js: JetStreamContext, name: str) -> Callable[[], Awaitable[int]]:
    async def found() -> int:
        return (await js.stream_info(name)).config.num_replicas or 1

    return found


async def _patiently(step: Callable[[], Awaitable[int]], url: str, timeout_s: float) -> int:
    """Tries until it succeeds: servers of a cluster that start don't keep anything yet.

    Raises:
        Fault: `unavailable`: it can't succeed, or has not in time.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            return await step()
        except TROUBLE as error:
            if _is_hopeless(error) or time.monotonic() + RETRY_S > deadline:
                raise Fault(errors.UNAVAILABLE, _why(error, url)) from None
            log.debug("streams are not there yet", error=repr(error))
        await asyncio.sleep(RETRY_S)


def _is_hopeless(error: BaseException) -> bool:
    return isinstance(error, APIError) and error.err_code == UNCLUSTERED


def _why(error: BaseException, url: str) -> str:
    if _is_hopeless(error):
        return (
            f"the NATS server at {url} is no cluster and can't keep replicas; set --stream-replicas 1 "
            "(PARROT_STREAM_REPLICAS), or name a cluster"
        )
    if isinstance(error, NotFoundError):
        return f"the NATS server at {url} has none of Parrot's streams; is a manager running?"
    return (
        f"the NATS server at {url} can't keep Parrot's streams ({error}); is JetStream turned on "
        "(nats-server -js), and are there as many servers as --stream-replicas says?"
    )
