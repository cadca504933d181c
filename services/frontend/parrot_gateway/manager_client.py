"""What the gateway asks of the managers, each request as its tenant."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any, Final

from parrot_gateway.doors.keys import Holder
from parrot_gateway.doors.rates import Granted
from parrot_gateway.managers import Managers, Tries
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_proto.manager.v1 import tenants_pb2
from parrot_runtime import errors, ids
from parrot_runtime.api_keys import KeyParts
from parrot_runtime.errors import Fault
from parrot_runtime.ids import is_id, is_session_id, shard_of

ASK_S: Final = 10.0
STORE_S: Final = 60.0


class ManagerClient:
    """Asks the manager of each session. Every method raises the manager's `Fault`, or `unavailable`.

    What may have been done unheard is asked for again with the same key, so that it is done once. What
    belongs to another tenant does not exist for this one.
    """

    def __init__(self, managers: Managers, tenant: str) -> None:
        self._managers = managers
        self.tenant = tenant

    def of(self, tenant: str) -> ManagerClient:
        """The same managers, asked as another tenant."""
        return ManagerClient(self._managers, tenant)

    def hurry(self) -> None:
        """Nothing waits any more for a manager that can be asked."""
        self._managers.hurry()

    async def create_session(
        self,
        label: str,
        timeout_ms: int,
        *,
        key: str = "",
        criteria: pb.Criteria | None = None,
        lazy: bool = False,
        ends_with_calls: bool = False,
    ) -> pb.Session:
        """A new session; `timeout_ms` 0 is the server's default. The same `key` gives the same session."""
        request = pb.CreateSessionRequest(
            tenant=self.tenant,
            label=label,
            timeout_ms=timeout_ms,
            idempotency_key=key or new_key(),
            criteria=criteria,
            lazy=lazy,
            ends_with_calls=ends_with_calls,
        )
        session_id = ids.session_id_of(self.tenant, request.idempotency_key)
        answer: pb.CreateSessionResponse = await self._ask("CreateSession", request, session_id, STORE_S)
        return answer.session

    async def get_session(
        self, session_id: str, *, brief: bool = False, patient: bool = True
    ) -> pb.GetSessionResponse:
        """A session's graph as it is now; `brief`: without the graph; `patient`: see `Managers.ask`."""
        request = pb.GetSessionRequest(tenant=self.tenant, session_id=session_id, brief=brief)
        answer: pb.GetSessionResponse = await self._ask(
            "GetSession", request, session_id, ASK_S, patient=patient
        )
        return answer

    async def list_sessions(
        self, state: common_pb2.SessionState.ValueType, limit: int, after: str
    ) -> pb.ListSessionsResponse:
        """A page of the tenant's sessions, newest first; `after`: the `next` of the page before."""
        request = pb.ListSessionsRequest(tenant=self.tenant, state=state, limit=limit, after=after)
        answer: pb.ListSessionsResponse = await self._managers.ask("ListSessions", request, ASK_S, shard=None)
        return answer

    async def close_session(self, session_id: str, *, patient: bool = True) -> pb.Session:
        """Ends a session; what is unfinished is cancelled. `patient`: see `Managers.ask`."""
        request = pb.CloseSessionRequest(tenant=self.tenant, session_id=session_id)
        answer: pb.CloseSessionResponse = await self._ask(
            "CloseSession", request, session_id, STORE_S, patient=patient
        )
        return answer.session

    async def delete_session(
        self, session_id: str, *, only_empty: bool = False, patient: bool = True
    ) -> None:
        """Ends a session, and deletes it with all it holds.

        `only_empty`: unless it has calls; `patient`: see `Managers.ask`.
        """
        request = pb.DeleteSessionRequest(tenant=self.tenant, session_id=session_id, only_empty=only_empty)
        tries = Tries()
        try:
            await self._ask("DeleteSession", request, session_id, STORE_S, patient=patient, tries=tries)
        except Fault as fault:
            # Perhaps by a try of which it is not known what became.
            if fault.kind is not errors.NOT_FOUND or not tries.unsure:
                raise

    async def open_with_calls(
        self,
        label: str,
        calls: Sequence[pb.NewCall],
        values: Sequence[pb.NewValue],
        key: str,
        *,
        session_key: str,
        criteria: pb.Criteria | None = None,
        wanted: Sequence[pb.Wanted] = (),
    ) -> pb.SubmitCallsResponse:
        """A session with a batch, all of it or nothing; it ends with its calls.

        The same `session_key` opens it once, and the same `key` adds the batch once.
        """
        opening = pb.CreateSessionRequest(
            tenant=self.tenant,
            label=label,
            idempotency_key=session_key,
            criteria=criteria,
            ends_with_calls=True,
        )
        request = pb.SubmitCallsRequest(
            tenant=self.tenant,
            session_id=self.session_id_of(session_key),
            calls=calls,
            values=values,
            idempotency_key=key,
            wanted=wanted,
            opening=opening,
        )
        answer: pb.SubmitCallsResponse = await self._ask("SubmitCalls", request, request.session_id, STORE_S)
        return answer

    def session_id_of(self, key: str) -> str:
        """The id of the session that is opened under a key."""
        return ids.session_id_of(self.tenant, key)

    async def submit_calls(
        self,
        session_id: str,
        calls: Sequence[pb.NewCall],
        values: Sequence[pb.NewValue],
        key: str,
        *,
        blocks: Sequence[pb.NewBlock] = (),
        wanted: Sequence[pb.Wanted] = (),
    ) -> pb.SubmitCallsResponse:
        """Adds a batch, all of it or nothing; the ids, each kind's in order. The same `key` adds it once."""
        request = pb.SubmitCallsRequest(
            tenant=self.tenant,
            session_id=session_id,
            calls=calls,
            values=values,
            idempotency_key=key,
            wanted=wanted,
            blocks=blocks,
        )
        answer: pb.SubmitCallsResponse = await self._ask("SubmitCalls", request, session_id, STORE_S)
        return answer

    async def cancel_calls(
        self, session_id: str, call_ids: Sequence[str], *, subtree: bool, patient: bool = True
    ) -> list[str]:
        """Cancels calls, with `subtree` what depends on them; those that were. `patient`: see `ask`."""
        request = pb.CancelCallsRequest(
            tenant=self.tenant, session_id=session_id, call_ids=call_ids, subtree=subtree
        )
        answer: pb.CancelCallsResponse = await self._ask(
            "CancelCalls", request, session_id, STORE_S, patient=patient
        )
        return list(answer.call_ids)

    async def claim_call(
        self, session_id: str, call_id: str, worker: str, wait_s: float
    ) -> pb.ClaimCallResponse:
        """A native call for a worker, if its inputs come within `wait_s`."""
        request = pb.ClaimCallRequest(
            tenant=self.tenant,
            session_id=session_id,
            call_id=call_id,
            worker=worker,
            wait_ms=int(wait_s * 1e3),
        )
        answer: pb.ClaimCallResponse = await self._ask("ClaimCall", request, session_id, STORE_S + wait_s)
        return answer

    async def renew_claim(self, session_id: str, call_id: str, worker: str) -> int:
        """For how many ms a call is a worker's from now on."""
        request = pb.RenewClaimRequest(
            tenant=self.tenant, session_id=session_id, call_id=call_id, worker=worker
        )
        answer: pb.RenewClaimResponse = await self._ask("RenewClaim", request, session_id, ASK_S)
        return answer.lease_ms

    async def complete_call(self, request: pb.CompleteCallRequest) -> common_pb2.CallState.ValueType:
        """How a call ended with what a worker made; the request's tenant is set here."""
        request.tenant = self.tenant
        answer: pb.CompleteCallResponse = await self._ask(
            "CompleteCall", request, request.session_id, STORE_S
        )
        return answer.state

    async def set_variable(self, session_id: str, variable_id: str, value: str, name: str) -> pb.Variable:
        """Gives a variable its value."""
        request = pb.SetVariableRequest(
            tenant=self.tenant, session_id=session_id, variable_id=variable_id, value=value, name=name
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
        with_producer: bool = False,
        wait_s: float = 0.0,
        criteria: pb.Criteria | None = None,
        patient: bool = True,
    ) -> pb.GetVariableResponse:
        """A variable at its end, or as it is after `wait_s`; `patient`: see `Managers.ask`."""
        if not is_id(variable_id):
            raise Fault(errors.NOT_FOUND, "there is no such variable", session_id=session_id)
        request = pb.GetVariableRequest(
            tenant=self.tenant,
            session_id=session_id,
            variable_id=variable_id,
            with_value=with_value,
            with_producer=with_producer,
            wait_ms=int(wait_s * 1e3),
            criteria=criteria,
        )
        answer: pb.GetVariableResponse = await self._ask(
            "GetVariable", request, session_id, ASK_S + wait_s, patient=patient
        )
        return answer

    async def check_key(self, key: KeyParts) -> Holder:
        """Whose a key is.

        Raises:
            Fault: `unauthenticated`.
        """
        request = tenants_pb2.CheckKeyRequest(id=key.id, digest=key.digest)
        answer: tenants_pb2.CheckKeyResponse = await self._managers.ask(
            "CheckKey", request, ASK_S, shard=None
        )
        return Holder(answer.tenant, answer.requests_per_second)

    async def lease_requests(self, tenant: str, wanted: int, returned: int) -> Granted:
        """Takes requests of a tenant's rate in advance."""
        request = tenants_pb2.LeaseRequestsRequest(tenant=tenant, wanted=wanted, returned=returned)
        answer: tenants_pb2.LeaseRequestsResponse = await self._managers.ask(
            "LeaseRequests", request, ASK_S, shard=None
        )
        return Granted(answer.granted, answer.retry_after_ms)

    async def list_models(self, timeout_s: float = ASK_S) -> list[pb.Model]:
        """The models some engine serves."""
        answer: pb.ListModelsResponse = await self._managers.ask(
            "ListModels", pb.ListModelsRequest(), timeout_s, shard=None
        )
        return list(answer.models)

    async def check_health(self, timeout_s: float) -> None:
        """Returns if a manager says that it serves."""
        await self._managers.check_health(timeout_s)

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
                # The key itself may be one that was made here of the client's.
                fault.message = "the idempotency key was used for another request; use a new one for each"
                fault.field = "Idempotency-Key"
            raise


def new_key() -> str:
    """A key for what the client gave none."""
    return secrets.token_hex(16)
