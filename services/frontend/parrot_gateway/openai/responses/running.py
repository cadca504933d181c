"""Responses on their way: waited for, cancelled, ended."""

from __future__ import annotations

import json
from dataclasses import dataclass

import structlog
from fastapi import Request
from fastapi.responses import Response

from parrot_gateway.closing import GatewayClosing
from parrot_gateway.connected import LEFT, while_connected
from parrot_gateway.gateway import Gateway
from parrot_gateway.openai.responses.calling import CALL_NAME
from parrot_gateway.openai.responses.resource import Told, resource
from parrot_gateway.openai.responses.standing import Standing, standing_with, watched
from parrot_gateway.openai.responses.streaming import ResponseStream
from parrot_gateway.watch import Ended
from parrot_runtime import errors
from parrot_runtime.errors import Fault

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Running:
    """A response that a request began, or began before under the same key.

    Attributes:
        alone: nobody else asked for it or reads it, and so it ends when its client leaves.
        last_of: the session that ends with it, being its agent's last request; empty: none.
    """

    gateway: Gateway
    standing: Standing
    alone: bool
    last_of: str = ""

    def stream(self) -> ResponseStream:
        """Its events."""
        return ResponseStream(self.gateway, self.standing, on_end=self._end, on_leaving=self._leave)

    async def whole(self, request: Request) -> Response:
        """The response at its end.

        Raises:
            Fault: why it has none; `unavailable`, when the gateway stops before.
        """
        answer = await while_connected(request, self._whole())
        if answer.status_code == LEFT:
            await self._leave()
        return answer

    async def _whole(self) -> Response:
        try:
            ended = await self._ended()
        except GatewayClosing:
            raise await self._stopping() from None
        except Fault:
            # Its client is told nothing that it could be read by.
            await self._leave(patient=False)
            raise
        await self._end()
        if ended.status == "failed":
            raise ended.failure or Fault(errors.INTERNAL, "the response failed")
        if ended.status == "cancelled":
            raise Fault(errors.CANCELLED, "the response was cancelled")
        return Response(json.dumps(resource(ended), ensure_ascii=False), media_type="application/json")

    async def _ended(self) -> Told:
        told = self.standing.told
        closing, heartbeat_s = self.gateway.closing, self.gateway.settings.heartbeat_s
        async with watched(self.gateway, self.standing) as watch:
            while not isinstance(await closing.interruptible(watch.next(heartbeat_s)), Ended):
                pass
        return (await standing_with(self.gateway, told.response, told.record)).told

    async def _stopping(self) -> Fault:
        """What a client is told whose gateway stops; a response that nobody can read ends there."""
        told = self.standing.told
        if told.record.stored:
            why = f"the server is stopping; the response goes on, read {told.response}"
        else:
            why = "the server is stopping; send the request again"
            await self._leave(patient=False)
        return Fault(errors.UNAVAILABLE, why, retry_after_ms=1000)

    async def _end(self, *, patient: bool = True) -> None:
        """What has come to its end takes up nothing more; what is not stored is gone."""
        told = self.standing.told
        try:
            if told.record.own and not told.record.stored and not told.record.session_key:
                # Under a key it stays for whoever asks again, and nobody else.
                await self.gateway.manager.delete_session(told.response.session_id, patient=patient)
            if self.last_of:
                await self.gateway.manager.close_session(self.last_of, patient=patient)
        except Fault as fault:
            # Its deadline ends the session too.
            log.warning("session not ended", session_id=told.response.session_id, reason=fault.message)

    async def _leave(self, *, patient: bool = True) -> None:
        """Nobody reads it any more, before its end. `patient`: see `Managers.ask`."""
        told = self.standing.told
        if not self.alone:
            return
        try:
            await cancelled(self.gateway, self.standing, patient=patient)
        except Fault as fault:
            log.warning("response not cancelled", session_id=told.response.session_id, reason=fault.message)
        await self._end(patient=patient)


async def own_session(gateway: Gateway, key: str) -> str:
    """The id of a session for one response, the same under the same key.

    It ends by itself with its call, whatever becomes of this process.

    Raises:
        Fault: the manager's.
    """
    session = await gateway.manager.create_session(CALL_NAME, 0, key=key, ends_with_calls=True)
    return session.id


async def cancelled(gateway: Gateway, standing: Standing, *, patient: bool = True) -> Standing:
    """The response, cancelled unless it had ended; its engine is told. `patient`: see `Managers.ask`.

    Raises:
        Fault: `unavailable`.
    """
    if standing.ended:
        return standing
    told = standing.told
    try:
        await gateway.manager.cancel_calls(
            told.response.session_id, [standing.call_id], subtree=False, patient=patient
        )
    except Fault as fault:
        # It had ended with its session by then.
        if fault.kind is not errors.SESSION_ENDED:
            raise
    return await standing_with(gateway, told.response, told.record)


async def delete(gateway: Gateway, standing: Standing) -> None:
    """Deletes a response with all that is kept of it.

    Raises:
        Fault: `invalid_request`, where it is a call of a session that holds others; `unavailable`.
    """
    told = standing.told
    if not told.record.own:
        raise Fault(
            errors.INVALID_REQUEST,
            f"the response is a call of session {told.response.session_id}, and goes with that",
            field="response_id",
            session_id=told.response.session_id,
        )
    await gateway.manager.delete_session(told.response.session_id)
    if told.record.session_key:
        # An empty session keeps its place: asked for again, it was made, and is gone.
        await gateway.manager.close_session(await own_session(gateway, told.record.session_key))
