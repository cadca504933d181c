"""What a session has yet to send, and how it is sent: collected, together, and once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from parrot.batch import Pending, Request, requests
from parrot.bodies import recorded
from parrot.client import Client
from parrot.conditions import Condition, combined, standing
from parrot.errors import ParrotError, SessionError
from parrot.nodes import Block, Node
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.session import Session

Variable = SemanticVariable[Any]


class Outbox:
    """The calls and blocks of one session. `add` may be called from any thread; the rest runs on the
    background loop."""

    def __init__(self, session: Session, client: Client) -> None:
        self._session = session
        self._client = client
        self._lock = threading.Lock()
        self._pending = Pending()
        self._gates: dict[tuple[str, tuple[Condition, ...]], Variable] = {}
        self._sending = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, node: Node) -> None:
        """Takes in a call or block, under the conditions it is made in; in a body, for the body.

        Raises:
            SessionError: one of its variables can't be used so, or the body can't hold it.
        """
        body = recorded()
        conditions = standing()
        if body is not None and body.session is not self._session:
            raise SessionError(f"{node.name} can't join another session than the {body.owner} it is in")
        if isinstance(node, Block) and body is not None:
            raise body.refuse(f"there can't be a {node.kind}")
        when = combined(conditions, self._gate)
        if when is not None:
            node = replace(node, when=when)
        if isinstance(node, Block) or body is None:
            with self._lock:
                self._pending.add(node, self._session)
        else:
            body.add(node)
        for output in node.outputs.values():
            output._under = conditions

    def know(self, variable: Variable) -> None:
        """Takes in a variable that the server has."""
        with self._lock:
            self._pending.know(variable.id)

    def missing_for(self, variable: Variable) -> Variable | None:
        """A variable that nobody set and that keeps `variable` from being made."""
        with self._lock:
            return self._pending.missing_for(variable)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Has a coroutine run until its end, or the session's."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def stop(self) -> None:
        """Cancels what was spawned."""
        for task in self._tasks:
            task.cancel()

    async def flush(self) -> None:
        """Sends what is pending. A wait that is given up does not leave a request half sent.

        Raises:
            RequestRefused: the server refused it. Of a request it accepts all or nothing; more than one
                request may hold is sent as several, and those before the refused one are accepted.
            ServerUnavailable: the server can't be reached.
        """
        if self._pending.empty and not self._sending.locked():
            return
        task = asyncio.create_task(self._send())
        task.add_done_callback(_seen)
        await asyncio.shield(task)

    def _gate(self, variable: Variable, when: Condition, under: tuple[Condition, ...]) -> Variable:
        """See `conditions.Gate`: a select of one."""
        body = recorded()
        if body is not None:
            raise body.refuse("a condition can't stand in another that its variable has nothing to do with")
        key = (variable.id, under)
        if key not in self._gates:
            made: Variable = SemanticVariable(variable.name)
            made._type = variable._type
            plan = {"from": [variable.id], "semantic_var_id": made.id, "name": made.name}
            with self._lock:
                self._pending.add(
                    Block("", "select", plan, (variable,), {made.name or "value": made}, when=when),
                    self._session,
                )
            made._under = under
            self._gates[key] = made
        return self._gates[key]

    async def _send(self) -> None:
        async with self._sending:
            with self._lock:
                nodes, values = self._pending.take()
            batch = list(requests(nodes, values))
            for index, request in enumerate(batch):
                try:
                    answer = await self._client.request(
                        request.method, f"/v1/sessions/{self._session.id}{request.path}", body=request.body
                    )
                except ParrotError as error:
                    _refuse(batch[index:], error)
                    raise
                self._accept(request, answer)

    def _accept(self, request: Request, answer: Any) -> None:
        with self._lock:
            self._pending.confirm(request.values)
        accepted: list[tuple[Node, Any]] = []
        if request.nodes:
            accepted += zip(request.calls, answer["calls"], strict=True)
            accepted += zip(request.blocks, answer.get("blocks", []), strict=True)
        for node, found in accepted:
            for output in node.outputs.values():
                output._state = "pending"
                output._producer_id = found["id"]
            node.accepted(self._session, found["id"])


def _refuse(batch: list[Request], error: ParrotError) -> None:
    for request in batch:
        for node in request.nodes:
            for output in node.outputs.values():
                output._fail(error)


def _seen(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()  # Its outputs have it, should nobody be waiting here any more.
