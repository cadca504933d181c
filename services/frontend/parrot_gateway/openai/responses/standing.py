"""How a response stands, told from its session by whichever gateway is asked."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from parrot_gateway.gateway import Gateway
from parrot_gateway.openai.logprobs import chat_logprobs, logprobs_of
from parrot_gateway.openai.responses.ids import ResponseId
from parrot_gateway.openai.responses.narration import Narrator
from parrot_gateway.openai.responses.reading import Teller
from parrot_gateway.openai.responses.record import Record, not_found
from parrot_gateway.openai.responses.resource import Status, Told
from parrot_gateway.openai.runs import Choice, Done, Run
from parrot_gateway.watch import Watch
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault

log = structlog.get_logger()

Logprobs = list[dict[str, Any]] | None

INLINE_CHARS: Final = 16_384
"""What is longer is read off the event loop."""

_AT_WORK: Final = frozenset({common_pb2.CALL_STATE_DISPATCHED, common_pb2.CALL_STATE_RUNNING})


@dataclass(frozen=True, slots=True)
class Standing:
    """A response as it is now.

    Attributes:
        call_id: the call that makes it.
        last: the number of its last event, where that is known.
        logprobs: of its text's tokens, where they were asked for and are still kept.
    """

    told: Told
    call_id: str
    last: int | None = None
    logprobs: Logprobs = None

    @property
    def ended(self) -> bool:
        """Nothing more becomes of it."""
        return self.told.status not in {"queued", "in_progress"}


def watched(gateway: Gateway, standing: Standing) -> AbstractAsyncContextManager[Watch]:
    """A watch of what the model writes, from its beginning."""
    told = standing.told
    # What was just seen to be there and unfinished needs no second look.
    watch = gateway.watch if standing.ended else gateway.watch_accepted
    return watch(told.response.session_id, told.record.output_variable)


async def standing_of(gateway: Gateway, response: ResponseId) -> Standing:
    """A response that may be read.

    Raises:
        Fault: `not_found`, also for what is not stored or is another tenant's; `unavailable`.
    """
    record = await record_at(gateway, response)
    if not record.stored:
        raise not_found(response)
    return await standing_with(gateway, response, record)


async def record_at(gateway: Gateway, response: ResponseId) -> Record:
    """What was asked for.

    Raises:
        Fault: `not_found`; `unavailable`.
    """
    try:
        got = await gateway.manager.get_variable(response.session_id, response.request_variable)
    except Fault as fault:
        raise _missing(fault, response) from None
    if len(got.value) <= INLINE_CHARS:
        return Record.read(got.value, response)
    return await asyncio.to_thread(Record.read, got.value, response)


async def standing_with(gateway: Gateway, response: ResponseId, record: Record) -> Standing:
    """As `standing_of`, of a response whose record is known.

    Raises:
        Fault: `not_found`; `unavailable`.
    """
    try:
        got = await gateway.manager.get_variable(
            response.session_id, record.output_variable, with_producer=True
        )
    except Fault as fault:
        raise _missing(fault, response) from None
    if not got.HasField("producer"):
        raise not_found(response)
    told = _told(response, record, got)
    if got.variable.state != common_pb2.VARIABLE_STATE_READY:
        return Standing(told, got.producer.id)
    logprobs = await _logprobs_of(gateway, told, got)
    narrator = await _narrated(told, got.value, logprobs)
    told = replace(told, output=tuple(narrator.output))
    return Standing(told, got.producer.id, narrator.last, logprobs)


def _told(response: ResponseId, record: Record, got: manager_pb2.GetVariableResponse) -> Told:
    call = got.producer
    failure = Fault.from_failure(got.variable.failure) if got.variable.failure.type else None
    return Told(
        response,
        record,
        created_at=call.accepted_unix_ms // 1000,
        model=call.provenance.model or call.model,
        status=_status(record, got),
        completed_at=got.variable.ready_unix_ms // 1000,
        usage=got.usage if got.usage.prompt_tokens or got.usage.output_tokens else None,
        failure=failure,
    )


def _status(record: Record, got: manager_pb2.GetVariableResponse) -> Status:
    state = got.variable.state
    if state == common_pb2.VARIABLE_STATE_READY:
        return "incomplete" if got.variable.finish_reason == "length" else "completed"
    if state == common_pb2.VARIABLE_STATE_FAILED:
        return "failed"
    if state == common_pb2.VARIABLE_STATE_CANCELLED:
        return "cancelled"
    waits = record.background and got.producer.state not in _AT_WORK
    return "queued" if waits else "in_progress"


async def _logprobs_of(gateway: Gateway, told: Told, got: manager_pb2.GetVariableResponse) -> Logprobs:
    if not told.record.logprobs or told.record.mode != "none":
        return None
    choice = Choice(got.producer.id, got.variable.id)
    run = Run(told.response.session_id, 0, (choice,), own=told.record.own)
    done = Done(0, got.value, got.variable.finish_reason, got.usage)
    try:
        found = chat_logprobs(await logprobs_of(gateway, run, done))
    except Fault as fault:
        # The text is told all the same.
        log.warning("logprobs not read", session_id=told.response.session_id, reason=fault.message)
        return None
    return found["content"] if found is not None else None


async def _narrated(told: Told, text: str, logprobs: Logprobs) -> Narrator:
    """The response told to its end: the whole text gives the same items as its pieces did."""

    def narrate() -> Narrator:
        narrator = Narrator(told)
        teller = Teller(narrator, told.record)
        for _ in (*narrator.begin(), *teller.text(text), *teller.end(told, logprobs)):
            pass
        return narrator

    # A short one is told before another thread would have begun.
    return narrate() if len(text) <= INLINE_CHARS else await asyncio.to_thread(narrate)


def _missing(fault: Fault, response: ResponseId) -> Fault:
    return not_found(response) if fault.kind is errors.NOT_FOUND else fault
