"""How a response begins: its request becomes a call of a session."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import structlog

from parrot_gateway.gateway import Gateway
from parrot_gateway.manager_client import new_key
from parrot_gateway.openai.agents import FULL, Agent, Place, begun, place_of
from parrot_gateway.openai.joining import criteria_of_joining, key_of_batch
from parrot_gateway.openai.responses.asked import NewResponse
from parrot_gateway.openai.responses.calling import CALL_NAME, call_of, located, places_of, toolbox_of
from parrot_gateway.openai.responses.conversation import earlier, referred
from parrot_gateway.openai.responses.ids import ResponseId
from parrot_gateway.openai.responses.items import stored
from parrot_gateway.openai.responses.prompting import Conversation
from parrot_gateway.openai.responses.record import Record, parsed_items, record_of
from parrot_gateway.openai.responses.running import Running
from parrot_gateway.openai.responses.standing import Standing, record_at, standing_with
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import too_large

log = structlog.get_logger()

_TIERS: Final = {"flex": "throughput", "priority": "ttft", "fast": "ttft", "ultrafast": "ttft"}


async def start(gateway: Gateway, asked: NewResponse, key: str, agent: Agent) -> Running:
    """Begins a response; under the same key it is begun once.

    Raises:
        Fault: what is wrong with the request, with the path of the field; the manager's.
    """
    # What is not to be kept can't be deleted alone out of a session that goes on.
    place = place_of(asked.parrot, agent, apart=bool(key) or asked.store is False)
    history = await earlier(gateway, asked.previous_response_id)
    items = stored(await referred(gateway, asked.input))
    beginning = _Beginning.of(gateway, asked, history=history, items=items, key=key, agent=agent)
    return await begun(gateway, place, beginning.at)


@dataclass(frozen=True, slots=True)
class _Beginning:
    """A request that is found good, ready to become a call of some session.

    Attributes:
        key: the client's, or one that nobody else has.
        keyed: it is the client's.
    """

    gateway: Gateway
    asked: NewResponse
    record: Record
    call: manager_pb2.NewCall
    criteria: manager_pb2.Criteria | None
    key: str
    keyed: bool

    @classmethod
    def of(
        cls,
        gateway: Gateway,
        asked: NewResponse,
        *,
        history: list[dict[str, Any]],
        items: list[dict[str, Any]],
        key: str,
        agent: Agent,
    ) -> _Beginning:
        """The request with these items, behind those of `history`.

        Raises:
            Fault: what is wrong with it, with the path of the field.
        """
        toolbox = toolbox_of(asked)
        chosen = key or new_key()
        response = ResponseId.made_of("", chosen)
        named = asked.parrot.output if asked.parrot is not None else None
        record = record_of(
            asked,
            items=items,
            history=history,
            toolbox=toolbox,
            output_variable=named or response.text_variable,
            session_key=_own_key(chosen) if key else "",
        )
        conversation = Conversation()
        conversation.instruct(asked.instructions)
        conversation.add(parsed_items(history, response))
        conversation.add(parsed_items(items, response), places_of(asked))
        call = call_of(asked, conversation, toolbox, record.output_variable)
        criteria = _criteria(asked, agent)
        if named and not key:
            chosen = key_of_batch([call], criteria, record.to_text())
        return cls(gateway, asked, record, call, criteria, chosen, bool(key))

    async def at(self, place: Place) -> Running:
        """Begins it where it belongs."""
        try:
            standing = await self.within(place.session_id)
        except Fault as fault:
            if not (place.free and fault.kind in FULL):
                raise
            # The agent's session was ended meanwhile, or is full; the request is none the worse for it.
            standing = await self.within("")
        alone = place.alone and not self.keyed and not self.asked.background
        return Running(self.gateway, standing, alone=alone, last_of=place.last_of)

    async def within(self, session_id: str) -> Standing:
        """Submits the call, in this session or in one of its own, and tells how it stands."""
        own = not session_id
        if own:
            session_id = self.gateway.manager.session_id_of(_own_key(self.key))
        response = ResponseId.made_of(session_id, self.key)
        record = self.record.model_copy(update={"own": own})
        try:
            await self._submit(response, record)
        except Fault as fault:
            if not (self.keyed and await self._was_begun(fault, response, record)):
                if own and fault.kind is errors.UNAVAILABLE:
                    await self._give_up(session_id)
                raise located(fault, self.asked) from None
        return await standing_with(self.gateway, response, record)

    async def _submit(self, response: ResponseId, record: Record) -> None:
        output = record.output_variable
        text = record.to_text()
        if (size := len(text.encode())) > limits.VALUE_BYTES:
            raise too_large("input", size, limits.VALUE_BYTES)
        value = manager_pb2.NewValue(variable_id=response.request_variable, name="request", value=text)
        wanted = [manager_pb2.Wanted(variable_id=output, criteria=self.criteria)] if self.criteria else []
        manager = self.gateway.manager
        if record.own:
            await manager.open_with_calls(
                CALL_NAME, [self.call], [value], self.key, session_key=_own_key(self.key), wanted=wanted
            )
        else:
            await manager.submit_calls(response.session_id, [self.call], [value], self.key, wanted=wanted)

    async def _was_begun(self, fault: Fault, response: ResponseId, record: Record) -> bool:
        """Whether it was begun under its key before, in a session that has ended since.

        Raises:
            Fault: `idempotency_conflict`: another request was, or this one and was deleted.
        """
        if fault.kind is not errors.SESSION_ENDED:
            return False
        try:
            before = await record_at(self.gateway, response)
        except Fault as missing:
            if missing.kind is not errors.NOT_FOUND:
                raise
            if not record.own:
                return False
            raise _conflict("a response that was deleted") from None
        if before != record:
            raise _conflict("another request")
        return True

    async def _give_up(self, session_id: str) -> None:
        """A session of its own may be there, and empty, and is of no use; sent again, it opens it again."""
        try:
            await self.gateway.manager.delete_session(session_id, only_empty=True, patient=False)
        except Fault as fault:
            log.warning("session not deleted", session_id=session_id, reason=fault.message)


def _criteria(asked: NewResponse, agent: Agent) -> manager_pb2.Criteria | None:
    """What is wanted of the output: as the request says, else its tier, else the agent."""
    said = criteria_of_joining(asked.parrot)
    tier = _TIERS.get(asked.service_tier or "")
    if said is None and tier is not None:
        kind = manager_pb2.ObjectiveKind.Value(f"OBJECTIVE_KIND_{tier.upper()}")
        return manager_pb2.Criteria(kind=kind)
    return said or agent.criteria


def _conflict(what: str) -> Fault:
    return Fault(
        errors.IDEMPOTENCY_CONFLICT,
        f"the key was used for {what}; use a new key",
        field="Idempotency-Key",
    )


def _own_key(key: str) -> str:
    """The key of the session that a request has to itself; another route's key is another's."""
    return f"response-{blake2b(key.encode(), digest_size=16).hexdigest()}"
