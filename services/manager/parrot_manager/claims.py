"""What workers of the client ask: calls to run, more time for them, and to be heard with what they made.

A claim is stored before it is told, and so is a result. Whoever asks again is answered alike.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from parrot_manager.core import claims
from parrot_manager.core.admission import find_session, session_not_found
from parrot_manager.core.model import Call, CallState, Edge, Failure, Value
from parrot_manager.core.native_events import CallClaimed, ClaimRenewed, NativeDone, NativeFailed
from parrot_manager.core.state import LiveSession
from parrot_manager.shell import Shell
from parrot_manager.waiters import of_call
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits, transforms
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_text, too_large
from parrot_runtime.transforms import NotApplicableError

INLINE_BYTES: Final = 65_536
"""More is transformed off the event loop, which engines wait for."""

Hole = common_pb2.InputHole | common_pb2.OutputHole
Texts = dict[str, str]


@dataclass(frozen=True, slots=True)
class Claimed:
    """What a worker gets: the inputs by placeholder, and for how long the call is its own."""

    inputs: Texts
    lease_ms: int


class Claims:
    """Answers workers. Every method raises `not_found`, `wrong_manager` and `unavailable` as others do."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell

    async def claim(
        self, tenant: str, session_id: str, call_id: str, worker: str, wait_s: float
    ) -> Claimed | None:
        """A call, for this worker alone; None: its inputs were not there within `wait_s`.

        Raises:
            Fault: `invalid_request`, `claim_lost`.
        """
        deadline = time.monotonic() + wait_s
        while True:
            live, call = await self._find(tenant, session_id, call_id)
            if self._admit(live, call, worker):
                self._shell.apply(CallClaimed(session_id, call_id, worker))
                await self._shell.settled(session_id)
                return await self._claimed(tenant, session_id, call_id, worker)
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return None
            await self._shell.waiters.wait(session_id, of_call(call_id), left_s)

    async def renew(self, tenant: str, session_id: str, call_id: str, worker: str) -> int:
        """For how long the call is the worker's from now on, in ms.

        Raises:
            Fault: `invalid_request`, `claim_lost`.
        """
        live, call = await self._find(tenant, session_id, call_id)
        if live is None:
            raise _not_here(call)
        claims.admit_renewal(live, call, worker)
        self._shell.apply(ClaimRenewed(session_id, call_id, worker))
        return self._shell.machine.policy.claim_ms

    async def complete(
        self,
        tenant: str,
        session_id: str,
        call_id: str,
        worker: str,
        result: Texts | Failure,
        *,
        unclaimed: bool = False,
    ) -> CallState:
        """How the call ended with this result, or with the worker's first; stored.

        Args:
            unclaimed: a call that is ready and nobody has claimed is claimed with it.

        Raises:
            Fault: `invalid_request`, `invalid_text`, `too_large`, `claim_lost`.
        """
        live, call = await self._find(tenant, session_id, call_id)
        if live is not None and not claims.has_result(call, worker):
            claims.admit_result(live, call, worker, unclaimed=unclaimed)
            made = result if isinstance(result, Failure) else await _values(call, result)
            self._shell.shards.check(session_id)
            if isinstance(made, Failure):
                self._shell.apply(NativeFailed(session_id, call_id, worker, made, unclaimed))
            else:
                self._shell.apply(NativeDone(session_id, call_id, worker, made, unclaimed))
            live, call = await self._find(tenant, session_id, call_id)
        # It may have ended otherwise meanwhile, or its session have left memory.
        if not claims.has_result(call, worker):
            raise _not_here(call)
        if live is not None:
            await self._shell.settled(session_id)
        return call.state

    def _admit(self, live: LiveSession | None, call: Call, worker: str) -> bool:
        if live is None:
            raise _not_here(call)
        if self._shell.draining:
            raise Fault(errors.UNAVAILABLE, "the manager is stopping; try again", retry_after_ms=2000)
        return claims.admit_claim(live, call, worker)

    async def _claimed(self, tenant: str, session_id: str, call_id: str, worker: str) -> Claimed:
        live, call = await self._find(tenant, session_id, call_id)
        if live is None or call.state.ended:
            raise _not_here(call)
        values = await self._shell.store.read_values(session_id, sorted(call.input_ids))
        if len(values) < len(call.input_ids):
            why = f"the value of an input of {call_id} is not in the store"
            raise Fault(errors.VALUE_UNAVAILABLE, why, session_id=session_id, call_id=call_id)
        texts = await _inputs(call, values)
        if isinstance(texts, Failure):
            self._shell.apply(NativeFailed(session_id, call_id, worker, texts))
            await self._shell.settled(session_id)
            _, call = await self._find(tenant, session_id, call_id)
            raise claims.ended(call)
        return Claimed(texts, self._shell.machine.policy.claim_ms)

    async def _find(self, tenant: str, session_id: str, call_id: str) -> tuple[LiveSession | None, Call]:
        """A call, and its session if that is in memory."""
        self._shell.shards.check(session_id)
        live = find_session(self._shell.machine.state, tenant, session_id)
        if live is not None:
            found = live.calls.get(call_id)
        else:
            record = await self._shell.store.load_session(tenant, session_id)
            if record is None:
                raise session_not_found(session_id)
            found = next((call for call in record.calls if call.id == call_id), None)
        if found is None:
            why = f"session {session_id} has no call {call_id!r}"
            raise Fault(errors.NOT_FOUND, why, session_id=session_id, call_id=call_id)
        return live, found


def _not_here(call: Call) -> Fault:
    """The refusal of a call whose session is not in memory, or of one that has ended."""
    if call.state.ended:
        return claims.ended(call)
    return Fault(
        errors.UNAVAILABLE,
        "it is not known yet what becomes of the call; try again",
        session_id=call.session_id,
        call_id=call.id,
        retry_after_ms=1000,
    )


async def _inputs(call: Call, values: Mapping[str, bytes]) -> Texts | Failure:
    """The inputs' texts, transformed; or why the call fails."""
    holes = [segment.input for segment in _segments(call) if segment.HasField("input")]
    texts = {edge.name: values[edge.variable_id].decode() for edge in call.inputs}
    size = sum(len(values[edge.variable_id]) for edge in call.inputs)
    if size > limits.BATCH_BYTES:
        why = f"its inputs are {size:,} bytes together; a worker takes {limits.BATCH_BYTES:,}"
        return Failure.of(errors.TOO_LARGE, why)
    return await _transformed(texts, call.inputs, holes, "input", size)


async def _values(call: Call, given: Texts) -> tuple[Value, ...] | Failure:
    """The outputs' values, transformed; or why the call fails.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `too_large`: the result is not one.
    """
    _check_outputs(call, given)
    holes = [segment.output for segment in _segments(call) if segment.HasField("output")]
    size = sum(len(text.encode()) for text in given.values())
    texts = await _transformed(given, call.outputs, holes, "output", size)
    if isinstance(texts, Failure):
        return texts
    return tuple(Value(edge.variable_id, texts[edge.name].encode()) for edge in call.outputs)


def _check_outputs(call: Call, given: Texts) -> None:
    names = [edge.name for edge in call.outputs]
    for name in names:
        if name not in given:
            raise Fault(
                errors.INVALID_REQUEST,
                f"outputs lacks {name!r}; the outputs of {call.id} are {', '.join(names)}",
                field=f"outputs.{name}",
            )
    for name, text in given.items():
        if name not in names:
            raise Fault(
                errors.INVALID_REQUEST,
                f"{call.id} has no output {name!r}; its outputs are {', '.join(names)}",
                field=f"outputs.{name}",
            )
        check_text(text, f"outputs.{name}", limit_bytes=limits.VALUE_BYTES)
    size = sum(len(text.encode()) for text in given.values())
    if size > limits.BATCH_BYTES:
        raise too_large("outputs", size, limits.BATCH_BYTES)


async def _transformed(
    texts: Texts, edges: Sequence[Edge], holes: Sequence[Hole], what: str, size: int
) -> Texts | Failure:
    steps = {edge.name: list(hole.transforms) for edge, hole in zip(edges, holes, strict=True)}
    if not any(steps.values()):
        return texts
    if size <= INLINE_BYTES:
        return _apply(texts, steps, what)
    return await asyncio.to_thread(_apply, texts, steps, what)


def _apply(texts: Texts, steps: Mapping[str, Sequence[str]], what: str) -> Texts | Failure:
    made: Texts = {}
    for name, text in texts.items():
        try:
            made[name] = transforms.apply(text, steps[name])
        except NotApplicableError as error:
            return Failure.of(errors.TRANSFORM_FAILED, f"{what} {name!r}: {error}")
    return made


def _segments(call: Call) -> Sequence[common_pb2.Segment]:
    return manager_pb2.NewCall.FromString(call.spec).segments
