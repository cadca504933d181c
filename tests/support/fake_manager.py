"""A manager for tests of what stands before it: keeps what it is told, over real gRPC, and runs nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import grpc
from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from opentelemetry import trace

from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb
from parrot_proto.manager.v1 import manager_pb2_grpc
from parrot_runtime import errors, ids, rpc
from parrot_runtime.errors import Fault
from tests.support.unplayed import Unplayed

Context = aio.ServicerContext[Any, Any]


@dataclass(slots=True)
class FakeSession:
    """One session's record."""

    session: pb.Session
    calls: list[pb.Call] = field(default_factory=list)
    variables: dict[str, pb.Variable] = field(default_factory=dict)
    values: dict[str, str] = field(default_factory=dict)


class FakeManager(Unplayed):
    """Answers as the manager would; tests say when and how variables end.

    Attributes:
        batches: every SubmitCalls request, in order.
        traces: the trace id each request came with.
        bug: answer every request with an unexpected error.
        shards: the shards it serves.
        managers: what it knows of who serves what; empty: it was not told.
        unheard: so many answers are lost on their way, after the request was carried out.
        moves: so many sessions are another manager's by the time what was asked for is stored.
        cut_off: its store is away: it answers reads, and neither writes nor who serves what.
        refused: how many requests it refused, being cut off.
        refused_batches: how many batches it refused with `refuse`.
        criteria: what readers said they want, in order.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self.sessions: dict[str, FakeSession] = {}
        self.batches: list[pb.SubmitCallsRequest] = []
        self.traces: list[str] = []
        self.bug = False
        self.refuse: Fault | None = None
        self.shards = set(range(ids.SHARDS))
        self.managers: list[pb.ManagerInfo] = []
        self.unheard = 0
        self.moves = 0
        self.cut_off = False
        self.refused = 0
        self.refused_batches = 0
        self.criteria: list[pb.Criteria] = []
        self.health = health.aio.HealthServicer()  # type: ignore[attr-defined]
        self._answered: dict[str, tuple[bytes, pb.SubmitCallsResponse]] = {}

    async def serves(self, *, well: bool) -> None:
        """Says by the health service that it serves, or not: its lease is over."""
        states = health_pb2.HealthCheckResponse
        await self.health.set("", states.SERVING if well else states.NOT_SERVING)

    def finish(self, session_id: str, variable_id: str, text: str) -> None:
        """Commits a variable's value, and its call when that was its last output."""
        found = self.sessions[session_id]
        variable = found.variables[variable_id]
        variable.state = common_pb2.VARIABLE_STATE_READY
        variable.size_bytes = len(text.encode())
        found.values[variable_id] = text
        for call in found.calls:
            outputs = [edge.variable_id for edge in call.outputs]
            if variable_id in outputs and all(output in found.values for output in outputs):
                call.state = common_pb2.CALL_STATE_DONE
                call.ended_unix_ms = call.accepted_unix_ms + 40
                call.usage.output_tokens = 3
                call.timings.dynamic_prefill_ms = 2.5
                call.provenance.CopyFrom(
                    common_pb2.Provenance(engine_id="e-1", dtype="float32", version="0.1")
                )
        self._tell()

    def fail(self, session_id: str, variable_id: str, fault: Fault) -> None:
        """Commits a variable's failure."""
        variable = self.sessions[session_id].variables[variable_id]
        variable.state = common_pb2.VARIABLE_STATE_FAILED
        variable.failure.CopyFrom(fault.to_failure())
        self._tell()

    def cancel(self, session_id: str, variable_id: str, fault: Fault) -> None:
        """Commits that a variable was cancelled, and why."""
        variable = self.sessions[session_id].variables[variable_id]
        variable.state = common_pb2.VARIABLE_STATE_CANCELLED
        variable.failure.CopyFrom(fault.to_failure())
        self._tell()

    def stream(self, session_id: str, variable_id: str) -> None:
        """Notes that a variable's first text is on the bus."""
        self.sessions[session_id].variables[variable_id].state = common_pb2.VARIABLE_STATE_STREAMING

    async def CreateSession(  # noqa: N802
        self, request: pb.CreateSessionRequest, context: Context
    ) -> pb.CreateSessionResponse:
        self._note()
        self._check_store()
        known = ids.session_id_of(request.tenant, request.idempotency_key) in self.sessions
        session = self._open(request)
        if not known:
            await self._lose_answer(context)
        return pb.CreateSessionResponse(session=session)

    def _open(self, request: pb.CreateSessionRequest) -> pb.Session:
        session_id = ids.session_id_of(request.tenant, request.idempotency_key)
        self._check_shard(session_id)
        if session_id in self.sessions:
            return self.sessions[session_id].session
        session = pb.Session(
            id=session_id,
            criteria=request.criteria,
            lazy=request.lazy,
            tenant=request.tenant,
            label=request.label,
            state=common_pb2.SESSION_STATE_OPEN,
            created_unix_ms=1,
            deadline_unix_ms=1 + (request.timeout_ms or 3_600_000),
            trace_id=self.traces[-1],
        )
        self.sessions[session.id] = FakeSession(session)
        return session

    async def GetSession(self, request: pb.GetSessionRequest, context: Context) -> pb.GetSessionResponse:  # noqa: N802
        self._note()
        found = self._session(request.session_id)
        return pb.GetSessionResponse(
            session=found.session, calls=found.calls, variables=list(found.variables.values())
        )

    async def CloseSession(  # noqa: N802
        self, request: pb.CloseSessionRequest, context: Context
    ) -> pb.CloseSessionResponse:
        self._note()
        found = self._session(request.session_id)
        found.session.state = common_pb2.SESSION_STATE_CLOSED
        for variable in found.variables.values():
            if variable.state in {common_pb2.VARIABLE_STATE_PENDING, common_pb2.VARIABLE_STATE_STREAMING}:
                variable.state = common_pb2.VARIABLE_STATE_CANCELLED
                found.session.state = common_pb2.SESSION_STATE_CANCELLED
        return pb.CloseSessionResponse(session=found.session)

    async def DeleteSession(  # noqa: N802
        self, request: pb.DeleteSessionRequest, context: Context
    ) -> pb.DeleteSessionResponse:
        self._note()
        self._session(request.session_id)
        del self.sessions[request.session_id]
        return pb.DeleteSessionResponse()

    async def SubmitCalls(self, request: pb.SubmitCallsRequest, context: Context) -> pb.SubmitCallsResponse:  # noqa: N802
        self._note()
        self._check_store()
        if request.HasField("opening") and self.refuse is None:
            self._open(request.opening)
        found = self._session(request.session_id)
        if self.refuse is not None:
            self.refused_batches += 1
            raise self.refuse
        digest = request.SerializeToString(deterministic=True)
        before = self._answered.get(request.idempotency_key)
        if before is not None:
            if before[0] != digest:
                raise Fault(errors.IDEMPOTENCY_CONFLICT, "another batch", field="idempotency_key")
            return before[1]
        self.batches.append(request)
        for value in request.values:
            self._put(found, value.variable_id, value.name, value.value)
        answer = pb.SubmitCallsResponse(
            session=found.session if request.HasField("opening") else None,
            call_ids=[self._accept(found, call) for call in request.calls],
        )
        self._answered[request.idempotency_key] = (digest, answer)
        await self._lose_answer(context)
        return answer

    async def CancelCalls(self, request: pb.CancelCallsRequest, context: Context) -> pb.CancelCallsResponse:  # noqa: N802
        self._note()
        found = self._session(request.session_id)
        calls = [call for call in found.calls if request.subtree or call.id in request.call_ids]
        for call in calls:
            call.state = common_pb2.CALL_STATE_CANCELLED
        return pb.CancelCallsResponse(call_ids=[call.id for call in calls])

    async def ListManagers(  # noqa: N802
        self, request: pb.ListManagersRequest, context: Context
    ) -> pb.ListManagersResponse:
        self._check_store()
        return pb.ListManagersResponse(managers=self.managers)

    async def SetVariable(self, request: pb.SetVariableRequest, context: Context) -> pb.SetVariableResponse:  # noqa: N802
        self._note()
        found = self._session(request.session_id)
        self._check_store()
        if request.variable_id in found.values:
            raise Fault(errors.VARIABLE_ALREADY_SET, "set before", variable_id=request.variable_id)
        variable = self._put(found, request.variable_id, request.name, request.value)
        await self._lose_answer(context)
        return pb.SetVariableResponse(variable=variable)

    async def GetVariable(self, request: pb.GetVariableRequest, context: Context) -> pb.GetVariableResponse:  # noqa: N802
        self._note()
        found = self._session(request.session_id)
        variable = found.variables.get(request.variable_id)
        if variable is None:
            raise Fault(errors.NOT_FOUND, "there is no such variable", session_id=request.session_id)
        self.criteria.append(request.criteria)
        await self._wait_for_end(variable, request.wait_ms / 1e3)
        value = found.values.get(request.variable_id, "") if request.with_value else ""
        return pb.GetVariableResponse(variable=variable, value=value)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:  # noqa: N802
        self._note()
        return pb.ListModelsResponse(models=[pb.Model(id="sim", context_window_tokens=4096, engines=1)])

    async def ListEngines(self, request: pb.ListEnginesRequest, context: Context) -> pb.ListEnginesResponse:  # noqa: N802
        self._note()
        return pb.ListEnginesResponse(
            engines=[
                pb.Engine(id="e-1", model="sim", state="ready", capacity=8, backend="sim", version="1.2")
            ]
        )

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _wait_for_end(self, variable: pb.Variable, timeout_s: float) -> None:
        going_on = {common_pb2.VARIABLE_STATE_PENDING, common_pb2.VARIABLE_STATE_STREAMING}
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while variable.state in going_on:
                    await self._changed.wait()

    def _note(self) -> None:
        if self.bug:
            raise ZeroDivisionError
        context = trace.get_current_span().get_span_context()
        self.traces.append(format(context.trace_id, "032x") if context.is_valid else "")

    def _check_shard(self, session_id: str) -> None:
        if ids.shard_of(session_id) not in self.shards:
            raise Fault(errors.WRONG_MANAGER, "another manager has it", session_id=session_id)

    def _check_store(self) -> None:
        if self.cut_off:
            self.refused += 1
            raise Fault(errors.UNAVAILABLE, "the database can't be reached", retry_after_ms=1000)

    async def _lose_answer(self, context: Context) -> None:
        if self.moves:
            self.moves -= 1
            raise Fault(errors.WRONG_MANAGER, "another manager has it by now")
        if self.unheard:
            self.unheard -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE)

    def _session(self, session_id: str) -> FakeSession:
        self._check_shard(session_id)
        found = self.sessions.get(session_id)
        if found is None:
            raise Fault(errors.NOT_FOUND, "there is no such session")
        return found

    def _put(self, found: FakeSession, variable_id: str, name: str, value: str) -> pb.Variable:
        variable = pb.Variable(
            id=variable_id,
            name=name,
            state=common_pb2.VARIABLE_STATE_READY,
            size_bytes=len(value.encode()),
        )
        found.variables[variable_id] = variable
        found.values[variable_id] = value
        return variable

    def _accept(self, found: FakeSession, new: pb.NewCall) -> str:
        call_id = f"c-{len(found.calls) + 1}"
        holes = [segment.output for segment in new.segments if segment.WhichOneof("piece") == "output"]
        inputs = [segment.input for segment in new.segments if segment.WhichOneof("piece") == "input"]
        for hole in holes:
            found.variables[hole.variable_id] = pb.Variable(
                id=hole.variable_id,
                name=hole.name,
                state=common_pb2.VARIABLE_STATE_PENDING,
                producer_call_id=call_id,
            )
        found.calls.append(
            pb.Call(
                id=call_id,
                name=new.name,
                model=new.model,
                state=common_pb2.CALL_STATE_RUNNING,
                inputs=[pb.Edge(name=hole.name, variable_id=hole.variable_id) for hole in inputs],
                outputs=[pb.Edge(name=hole.name, variable_id=hole.variable_id) for hole in holes],
                accepted_unix_ms=2,
            )
        )
        return call_id


@asynccontextmanager
async def running_manager() -> AsyncIterator[tuple[FakeManager, str]]:
    """A fake manager on a free port, and its address."""
    fake, server = FakeManager(), rpc.server()
    manager_pb2_grpc.add_ManagerServiceServicer_to_server(fake, server)
    health_pb2_grpc.add_HealthServicer_to_server(fake.health, server)
    await fake.serves(well=True)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield fake, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
