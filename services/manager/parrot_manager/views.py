"""What clients read: from memory while a session is there, from the store afterwards."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from parrot_manager import convert
from parrot_manager.core.admission import find_session, session_not_found
from parrot_manager.core.blocks.model import Block
from parrot_manager.core.graph import Graph
from parrot_manager.core.model import SANDBOX_MODEL, Call, Session, SessionState, Variable, VariableState
from parrot_manager.core.state import LiveSession
from parrot_manager.shell import Shell
from parrot_manager.store.base import SessionRecord
from parrot_manager.store.listing import Place
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.version import parrot_version

ARCHIVED: Final = 64


@dataclass(frozen=True, slots=True)
class View:
    """A session's graph, to be read."""

    session: Session
    calls: Mapping[str, Call]
    variables: Mapping[str, Variable]
    graph: Graph
    blocks: Mapping[str, Block]


class Views:
    """Reads. Ended sessions never change, so the last few read from the store are kept."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        # Under another epoch another manager had the shard meanwhile, and may have deleted the session.
        self._archive: OrderedDict[tuple[str, int | None], View] = OrderedDict()

    async def session(
        self, tenant: str, session_id: str, *, brief: bool = False
    ) -> manager_pb2.GetSessionResponse:
        """The graph with its states; `brief`: only the session itself.

        Raises:
            Fault: `not_found`, `unavailable`.
        """
        view = await self._view(tenant, session_id)
        if brief:
            return manager_pb2.GetSessionResponse(session=convert.to_session(view.session))
        return manager_pb2.GetSessionResponse(
            session=convert.to_session(view.session, with_marks=True),
            calls=[convert.to_call(call) for call in view.calls.values()],
            variables=[convert.to_variable(variable, view.graph) for variable in view.variables.values()],
            blocks=[convert.to_block(block) for block in view.blocks.values()],
        )

    async def sessions(
        self, tenant: str, state: SessionState | None, after: Place | None, limit: int
    ) -> manager_pb2.ListSessionsResponse:
        """A page of a tenant's sessions, newest first, whichever managers serve them.

        Raises:
            Fault: `unavailable`.
        """
        # One more than was asked for tells whether there are more.
        found = await self._shell.store.list_sessions(tenant, state, after, limit + 1)
        page = found[:limit]
        return manager_pb2.ListSessionsResponse(
            sessions=[convert.to_listed(one) for one in page],
            next=str(Place.of(page[-1].session)) if len(found) > limit else "",
        )

    async def variable(
        self,
        tenant: str,
        session_id: str,
        variable_id: str,
        *,
        with_value: bool,
        with_producer: bool = False,
    ) -> manager_pb2.GetVariableResponse:
        """One variable; an end is told once it is stored.

        Raises:
            Fault: `not_found`, `unavailable`.
        """
        view, variable = await self._find(tenant, session_id, variable_id)
        if variable.state.ended:
            await self._shell.settled(session_id)
        # Only a value is worth asking the store for, which may be away.
        ready = with_value and variable.state is VariableState.READY
        data = await self._shell.store.read_value(session_id, variable_id) if ready else None
        if ready and data is None:
            # Its session's rows are deleted, and what was kept of them here is older.
            self.forget(session_id)
            raise session_not_found(session_id)
        producer = view.calls.get(variable.producer_call_id)
        return manager_pb2.GetVariableResponse(
            variable=convert.to_variable(variable, view.graph),
            value=(data or b"").decode(),
            usage=convert.to_usage(producer.usage) if producer is not None else None,
            producer=convert.to_call(producer) if producer is not None and with_producer else None,
        )

    async def wait(self, tenant: str, session_id: str, variable_id: str, *, timeout_s: float) -> None:
        """Returns when a variable's end is stored, or after `timeout_s`.

        Raises:
            Fault: `not_found`, `unavailable`.
        """
        _, variable = await self._find(tenant, session_id, variable_id)
        if not variable.state.ended:
            await self._shell.waiters.wait(session_id, variable_id, timeout_s)

    def forget(self, session_id: str) -> None:
        """A session was deleted: what is kept of it here goes too."""
        self._archive.pop(self._key(session_id), None)

    def models(self) -> manager_pb2.ListModelsResponse:
        """The models that are served; of different windows the smallest counts."""
        found: dict[str, manager_pb2.Model] = {}
        for load in self._shell.machine.state.engines.values():
            engine = load.engine
            if engine.model == SANDBOX_MODEL:
                continue
            model = found.setdefault(
                engine.model,
                manager_pb2.Model(id=engine.model, context_window_tokens=engine.context_window_tokens),
            )
            model.engines += 1
            model.context_window_tokens = min(model.context_window_tokens, engine.context_window_tokens)
        return manager_pb2.ListModelsResponse(models=[found[name] for name in sorted(found)])

    def managers(self) -> manager_pb2.ListManagersResponse:
        """The managers that live, and the shards of each.

        Raises:
            Fault: `unavailable`, when this manager could not look lately: another may know.
        """
        if not self._shell.keeper.valid:
            why = "this manager can't reach the database; ask another"
            raise Fault(errors.UNAVAILABLE, why, retry_after_ms=1000)
        standing = self._shell.shards.standing
        return manager_pb2.ListManagersResponse(
            managers=[
                manager_pb2.ManagerInfo(id=peer.id, address=peer.address, shards=standing.of(peer.id))
                for peer in standing.peers
            ],
            parrot_version=parrot_version(),
        )

    def engines(self) -> manager_pb2.ListEnginesResponse:
        """The engines that are attached."""
        loads = self._shell.machine.state.engines
        return manager_pb2.ListEnginesResponse(
            engines=[
                manager_pb2.Engine(
                    id=load.engine.id,
                    model=load.engine.model,
                    state=load.engine.state.value,
                    running=len(load.running),
                    capacity=load.engine.capacity,
                    backend=load.engine.backend,
                    version=load.engine.version,
                    dtype=load.engine.dtype,
                    attention=load.engine.attention,
                    parrot_version=load.engine.parrot_version,
                )
                for _, load in sorted(loads.items())
            ]
        )

    async def _find(self, tenant: str, session_id: str, variable_id: str) -> tuple[View, Variable]:
        view = await self._view(tenant, session_id)
        variable = view.variables.get(variable_id)
        if variable is None:
            raise Fault(
                errors.NOT_FOUND,
                f"session {session_id} has no variable {variable_id!r}",
                session_id=session_id,
                variable_id=variable_id,
            )
        return view, variable

    async def _view(self, tenant: str, session_id: str) -> View:
        self._shell.shards.check(session_id)
        live = find_session(self._shell.machine.state, tenant, session_id)
        if live is not None:
            return _of_live(live)
        key = self._key(session_id)
        view = self._archive.get(key)
        if view is None:
            record = await self._shell.store.load_session(tenant, session_id)
            if record is None:
                raise session_not_found(session_id)
            view = self._archive[key] = _of_record(record)
        if view.session.tenant != tenant:
            raise session_not_found(session_id)
        self._archive.move_to_end(key)
        if len(self._archive) > ARCHIVED:
            self._archive.popitem(last=False)
        return view

    def _key(self, session_id: str) -> tuple[str, int | None]:
        return session_id, self._shell.shards.epoch_held(session_id)


def _of_live(live: LiveSession) -> View:
    return View(live.session, live.calls, live.variables, live.graph, live.blocks.all)


def _of_record(record: SessionRecord) -> View:
    graph = Graph()
    for call in record.calls:
        graph.add(call.id, call)
    return View(
        record.session,
        {call.id: call for call in record.calls},
        {variable.id: variable for variable in record.variables},
        graph,
        {block.id: block for block in record.blocks},
    )
