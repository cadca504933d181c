"""Requests as calls: made, listened to, ended.

A request by itself is a session of its own, which closes when its last call has ended; one that joins a
session is a call, or several, of that one. Under the same idempotency key the same session, calls and
variables are found again, on any gateway and after their end.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final

from parrot_gateway.gateway import Gateway
from parrot_gateway.manager_client import new_key
from parrot_gateway.openai.agents import FULL, Place
from parrot_gateway.watch import Ended, Watch
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.reader import Chunk

_OVER: Final = frozenset({errors.SESSION_ENDED, errors.NOT_FOUND})


@dataclass(frozen=True, slots=True)
class Plan:
    """What a request comes to.

    Attributes:
        calls: each with one output.
        place: where it becomes calls.
        label: of its own session; for people.
        digest: what tells requests under one key apart.
        batch_key: of its calls, where the client gives no key; empty: one that nobody else has.
    """

    calls: Sequence[manager_pb2.NewCall]
    values: Sequence[manager_pb2.NewValue] = ()
    place: Place = field(default_factory=Place)
    label: str = ""
    criteria: manager_pb2.Criteria | None = None
    digest: str = ""
    batch_key: str = ""


@dataclass(frozen=True, slots=True)
class Choice:
    """One text that is generated."""

    call_id: str
    variable_id: str


@dataclass(frozen=True, slots=True)
class Run:
    """A request that was accepted.

    Attributes:
        own: its session is its own.
        alone, last_of: see `Place`.
        keyed: it came under a key: it may be asked for again, and goes on without whoever sent it.
    """

    session_id: str
    created_unix_ms: int
    choices: tuple[Choice, ...]
    own: bool
    keyed: bool = False
    alone: bool = True
    last_of: str = ""

    @property
    def id(self) -> str:
        """What tells it apart from every other."""
        return self.session_id if self.own else f"{self.session_id}-{self.choices[0].call_id}"


@dataclass(frozen=True, slots=True)
class Text:
    """Text of a choice that comes next."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class Done:
    """A choice is whole.

    Attributes:
        reason: stop, length or stop_text.
    """

    index: int
    text: str
    reason: str
    usage: common_pb2.Usage


News = Text | Done


def output_id(key: str, place: int) -> str:
    """The id of a choice's variable in a session that is not its own; the same for every try."""
    return f"v-{blake2b(f'{key}/{place}'.encode(), digest_size=8).hexdigest()}"


async def start(gateway: Gateway, plan: Plan, key: str) -> Run:
    """A run of what is planned, stored; under the client's `key` the one there is already.

    Raises:
        Fault: what is wrong with it, or `unavailable`.
    """
    if not plan.place.session_id:
        return await _alone(gateway, plan, key)
    try:
        return await _joined(gateway, plan, key)
    except Fault as fault:
        # Under a key it may have been run there before.
        if key or not (plan.place.free and fault.kind in FULL):
            raise
        # The agent's session was ended meanwhile, or is full; the request is none the worse for it.
        return await _alone(gateway, plan, key)


async def leave(gateway: Gateway, run: Run) -> None:
    """Whoever asked has gone before the end: what was run for nobody else is cancelled."""
    with contextlib.suppress(Fault):
        if run.own and not run.keyed:
            await gateway.manager.close_session(run.session_id)
        elif run.alone and not run.keyed:
            calls = [choice.call_id for choice in run.choices]
            await gateway.manager.cancel_calls(run.session_id, calls, subtree=False)
    await finish(gateway, run)


async def finish(gateway: Gateway, run: Run) -> None:
    """A run is over: an agent's session ends with its last request."""
    if run.last_of:
        with contextlib.suppress(Fault):
            await gateway.manager.close_session(run.last_of)


class Listener:
    """Hears all choices of a run, as they come."""

    def __init__(self, gateway: Gateway, watches: Sequence[Watch]) -> None:
        self._closing = gateway.closing
        self._watches = list(watches)
        self._asking: dict[asyncio.Task[Chunk | Ended | None], int] = {}
        self._open = dict.fromkeys(range(len(self._watches)))

    @property
    def open(self) -> bool:
        """Whether a choice is not whole yet."""
        return bool(self._open)

    async def next(self, within_s: float) -> News | None:
        """What comes next, of any choice; None: nothing within so many seconds.

        Raises:
            Fault: why a choice has no text.
            GatewayClosing: the gateway stops.
        """
        return await self._closing.interruptible(self._next(within_s))

    async def stop(self) -> None:
        """Asks no further."""
        for task in self._asking:
            task.cancel()
        await asyncio.gather(*self._asking, return_exceptions=True)

    async def _next(self, within_s: float) -> News | None:
        if len(self._watches) == 1:
            return self._told(0, await self._watches[0].next(within_s))
        for index in self._open.keys() - set(self._asking.values()):
            self._asking[asyncio.create_task(self._watches[index].next(within_s))] = index
        done, _ = await asyncio.wait(self._asking, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)
        for task in sorted(done, key=self._asking.__getitem__):
            index = self._asking.pop(task)
            if (news := self._told(index, task.result())) is not None:
                return news
        return None

    def _told(self, index: int, news: Chunk | Ended | None) -> News | None:
        if news is None:
            return None
        if isinstance(news, Chunk):
            return Text(index, news.text)
        if news.text is None:
            raise failure_of(news.variable)
        del self._open[index]
        return Done(index, news.text, news.variable.finish_reason, news.usage)


@asynccontextmanager
async def listening(gateway: Gateway, run: Run) -> AsyncIterator[Listener]:
    """Hears a run for the length of the `async with`.

    Raises:
        Fault: `unavailable`.
    """
    async with AsyncExitStack() as stack:
        watches = [
            await stack.enter_async_context(gateway.watch_accepted(run.session_id, choice.variable_id))
            for choice in run.choices
        ]
        listener = Listener(gateway, watches)
        stack.push_async_callback(listener.stop)
        yield listener


def failure_of(variable: manager_pb2.Variable) -> Fault:
    """Why a variable has no value."""
    if variable.failure.type:
        return Fault.from_failure(variable.failure)
    return Fault(errors.CANCELLED, "it was cancelled", variable_id=variable.id)


async def _joined(gateway: Gateway, plan: Plan, key: str) -> Run:
    place = plan.place
    answer = await gateway.manager.submit_calls(
        place.session_id, plan.calls, plan.values, key or plan.batch_key or new_key(), wanted=_wanted(plan)
    )
    now_ms = time.time_ns() // 1_000_000
    choices = _choices(answer.call_ids, plan)
    return Run(place.session_id, now_ms, choices, False, bool(key), place.alone, place.last_of)


async def _alone(gateway: Gateway, plan: Plan, key: str) -> Run:
    session_key = f"openai-{blake2b(key.encode(), digest_size=16).hexdigest()}" if key else new_key()
    try:
        begun = await gateway.manager.open_with_calls(
            # What the label says of the request refuses another one under its key, whatever became of
            # the first.
            f"{plan.label} {plan.digest}" if key else plan.label,
            plan.calls,
            plan.values,
            key or new_key(),
            session_key=session_key,
            criteria=plan.criteria,
            wanted=_wanted(plan),
        )
        session, call_ids = begun.session, list(begun.call_ids)
    except Fault as fault:
        session_id = gateway.manager.session_id_of(session_key)
        if not (key and fault.kind in _OVER):
            if fault.kind is errors.UNAVAILABLE:
                # It may be there, and empty. Sent again under its key, the request opens it anew. Whoever
                # asked has waited long enough.
                with contextlib.suppress(Fault):
                    await gateway.manager.delete_session(session_id, only_empty=True, patient=False)
            raise
        # It has ended since it was asked for the first time.
        before = await gateway.manager.get_session(session_id)
        session, call_ids = before.session, [call.id for call in before.calls]
        if not call_ids:
            # It was cancelled, or its time was over, before it had any.
            raise Fault(
                errors.IDEMPOTENCY_CONFLICT,
                "the key was used for a request that ended before it began; use a new key",
                field="Idempotency-Key",
            ) from None
    choices = _choices(call_ids, plan)
    return Run(session.id, session.created_unix_ms, choices, True, bool(key), last_of=plan.place.last_of)


def _choices(call_ids: Sequence[str], plan: Plan) -> tuple[Choice, ...]:
    return tuple(map(Choice, call_ids, map(_output_of, plan.calls)))


def _output_of(call: manager_pb2.NewCall) -> str:
    return next(piece.output.variable_id for piece in call.segments if piece.HasField("output"))


def _wanted(plan: Plan) -> list[manager_pb2.Wanted]:
    return [
        manager_pb2.Wanted(variable_id=name, criteria=plan.criteria) for name in map(_output_of, plan.calls)
    ]
