"""What the gateway asks of the managers, as the one tenant there is without keys."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

from parrot_gateway.managers import Managers, Tries
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_runtime import errors, ids
from parrot_runtime.errors import Fault
from parrot_runtime.ids import is_id, is_session_id, shard_of

TENANT: Final = "default"
ASK_S: Final = 10.0
STORE_S: Final = 60.0


class ManagerClient:
    """Asks the manager of each session. Every method raises the manager's `Fault`, or `unavailable`.

    What may have been done unheard is asked for again with the same key, so that it is done once.
    """

    def __init__(self, managers: Managers) -> None:
        self._managers = managers

    async def create_session(
        self,
        label: str,
        timeout_ms: int,
        *,
        key: str = "",
        criteria: pb.Criteria | None = None,
        lazy: bool = False,
    ) -> pb.Session:
        """A new session; `timeout_ms` 0 is the server's default. The same `key` gives the same session."""
        request = pb.CreateSessionRequest(
            tenant=TENANT,
            label=label,
            timeout_ms=timeout_ms,
            idempotency_key=key or new_key(),
            criteria=criteria,
            lazy=lazy,
        )
        session_id = ids.session_id_of(TENANT, request.idempotency_key)
        answer: pb.CreateSessionResponse = await self._ask("CreateSession", request, session_id, STORE_S)
        return answer.session

    async def get_session(self, session_id: str) -> pb.GetSessionResponse:
        """A session's graph as it is now."""
        request = pb.GetSessionRequest(tenant=TENANT, session_id=session_id)
        answer: pb.GetSessionResponse = await self._ask("GetSession", request, session_id, ASK_S)
        return answer

    async def close_session(self, session_id: str) -> pb.Session:
        """Ends a session; what is unfinished is cancelled."""
        request = pb.CloseSessionRequest(tenant=TENANT, session_id=session_id)
        answer: pb.CloseSessionResponse = await self._ask("CloseSession", request, session_id, STORE_S)
        return answer.session

    async def submit_calls(
        self, session_id: str, calls: Sequence[pb.NewCall], values: Sequence[pb.NewValue], key: str
    ) -> list[str]:
        """Adds a batch, all of it or nothing; the calls' ids in order. The same `key` adds it once."""
        request = pb.SubmitCallsRequest(
            tenant=TENANT, session_id=session_id, calls=calls, values=values, idempotency_key=key
        )
        answer: pb.SubmitCallsResponse = await self._ask("SubmitCalls", request, session_id, STORE_S)
        return list(answer.call_ids)

    async def cancel_calls(self, session_id: str, call_ids: Sequence[str], *, subtree: bool) -> list[str]:
        """Cancels calls and what depends on them; all that were cancelled now."""
        request = pb.CancelCallsRequest(
            tenant=TENANT, session_id=session_id, call_ids=call_ids, subtree=subtree
        )
        answer: pb.CancelCallsResponse = await self._ask("CancelCalls", request, session_id, STORE_S)
        return list(answer.call_ids)

    async def set_variable(self, session_id: str, variable_id: str, value: str, name: str) -> pb.Variable:
        """Gives a variable its value."""
        request = pb.SetVariableRequest(
            tenant=TENANT, session_id=session_id, variable_id=variable_id, value=value, name=name
        )
        tries = Tries()
        try:
            answer: pb.SetVariableResponse = await self._ask(
                "SetVariable", request, session_id, STORE_S, tries=tries
            )
        except Fault as fault:
            if fault.kind is not errors.VARIABLE_ALREADY_SET or not tries.unsure:
                raise
            # Perhaps by a try of which it is not known what became.
            got = await self.get_variable(session_id, variable_id)
            if got.variable.producer_call_id or got.value != value:
                raise
            return got.variable
        return answer.variable

    async def get_variable(
        self,
        session_id: str,
        variable_id: str,
        *,
        with_value: bool = True,
        wait_s: float = 0.0,
        criteria: pb.Criteria | None = None,
        patient: bool = True,
    ) -> pb.GetVariableResponse:
        """A variable at its end, or as it is after `wait_s`; `patient`: see `Managers.ask`."""
        if not is_id(variable_id):
            raise Fault(errors.NOT_FOUND, "there is no such variable", session_id=session_id)
        request = pb.GetVariableRequest(
            tenant=TENANT,
            session_id=session_id,
            variable_id=variable_id,
            with_value=with_value,
            wait_ms=int(wait_s * 1e3),
            criteria=criteria,
        )
        answer: pb.GetVariableResponse = await self._ask(
            "GetVariable", request, session_id, ASK_S + wait_s, patient=patient
        )
        return answer

    async def list_models(self, timeout_s: float = ASK_S) -> list[pb.Model]:
        """The models some engine serves."""
        answer: pb.ListModelsResponse = await self._managers.ask(
            "ListModels", pb.ListModelsRequest(), timeout_s, shard=None
        )
        return list(answer.models)

    async def list_engines(self) -> list[pb.Engine]:
        """The engines the managers know."""
        answer: pb.ListEnginesResponse = await self._managers.ask(
            "ListEngines", pb.ListEnginesRequest(), ASK_S, shard=None
        )
        return list(answer.engines)

    async def _ask(
        self,
        method: str,
        request: Any,
        session_id: str,
        timeout_s: float,
        *,
        patient: bool = True,
        tries: Tries | None = None,
    ) -> Any:
        if not is_session_id(session_id):
            raise Fault(errors.NOT_FOUND, "there is no such session")
        shard = shard_of(session_id)
        try:
            return await self._managers.ask(
                method, request, timeout_s, shard=shard, patient=patient, tries=tries
            )
        except Fault as fault:
            if fault.kind is errors.IDEMPOTENCY_CONFLICT:
                fault.field = "Idempotency-Key"
            raise


def new_key() -> str:
    """A key for what the client gave none."""
    return secrets.token_hex(16)
