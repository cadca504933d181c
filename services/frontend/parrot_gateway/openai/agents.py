"""What agents say of themselves in headers: which chain of requests is one, whose child it is, how urgent.

The names are those of agents that are about, and of servers they are pointed at. Dynamo's come first
(docs.nvidia.com/dynamo, "Session IDs" and "Priority Scheduling"), then those that Claude Code, Codex and
OpenCode send by themselves; `x-slo-ttft-ms` is llm-d's. The requests of one chain become calls of one
session: one graph to look at, one trace, one thing to cancel.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

from fastapi import Depends, Request

from parrot_gateway.headers import criteria_of
from parrot_gateway.openai.joining import Joining, check_joining
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_name

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from parrot_gateway.gateway import Gateway

FULL: Final = frozenset({errors.SESSION_ENDED, errors.TOO_LARGE})
"""What a chain's session refuses a request with that another session may take."""
Made = TypeVar("Made")
PERIOD_S: Final = 3600
"""For so long, by the clock, the requests of a chain join the session its first one opened."""

_SESSIONS: Final = ("x-dynamo-session-id", "x-claude-code-session-id", "session-id", "x-session-id")
_PARENTS: Final = {
    "x-dynamo-session-id": "x-dynamo-parent-session-id",
    "x-session-id": "x-parent-session-id",
}
_CLAUDE: Final = "x-claude-code-session-id"
_CLAUDE_CHILD: Final = "x-claude-code-agent-id"
_FINAL: Final = "x-dynamo-session-final"
_PRIORITY: Final = "x-dynamo-request-priority"
_TTFT: Final = "x-slo-ttft-ms"


@dataclass(frozen=True, slots=True)
class Agent:
    """What a request's headers say.

    Attributes:
        chain: which chain of requests it is of; empty: they don't say.
        parent: the chain that began this one; empty: none.
        final: it is the chain's last request.
        criteria: what is wanted of the output; None: they don't say.
    """

    chain: str = ""
    parent: str = ""
    final: bool = False
    criteria: manager_pb2.Criteria | None = None

    async def session(self, gateway: Gateway) -> str:
        """The id of the open session of the chain, made if need be; the same on every gateway.

        Raises:
            Fault: the manager's.
        """
        period = int(time.time()) // PERIOD_S
        told = f"{self.chain}\0{self.parent}\0{period}".encode()
        label = f"agent {self.chain}" + (f" of {self.parent}" if self.parent else "")
        session = await gateway.manager.create_session(
            label[: limits.NAME_CHARS],
            # Whoever joins in the period's last moment still has as long as another session gives.
            2 * PERIOD_S * 1000,
            key=f"agent-{blake2b(told, digest_size=16).hexdigest()}",
        )
        return session.id


def agent_of(headers: Mapping[str, str]) -> Agent:
    """What headers, their names in lower case, say of who sends them.

    Raises:
        Fault: `invalid_request` or `invalid_text`, with the header's name as the field.
    """
    chain, parent = _identity(headers)
    return Agent(chain, parent, headers.get(_FINAL, "").lower() == "true", _criteria(headers))


def _identity(headers: Mapping[str, str]) -> tuple[str, str]:
    source = next((name for name in _SESSIONS if headers.get(name)), "")
    if not source:
        return "", ""
    chain = check_name(headers[source], source)
    if source == _CLAUDE:
        child = check_name(headers.get(_CLAUDE_CHILD, ""), _CLAUDE_CHILD)
        return (child, chain) if child and child != chain else (chain, "")
    parent = _PARENTS.get(source, "")
    return chain, check_name(headers.get(parent, ""), parent) if parent else ""


def _criteria(headers: Mapping[str, str]) -> manager_pb2.Criteria | None:
    priority = _number(headers, _PRIORITY)
    if priority is not None and priority < 0:
        return criteria_of("throughput", 0)
    if _number(headers, _TTFT) is not None:
        return criteria_of("ttft", 0)
    return criteria_of("latency", 0) if priority else None


def _number(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name, "")
    if not text:
        return None
    try:
        return int(text)
    except ValueError:
        raise Fault(errors.INVALID_REQUEST, f"{name} is a whole number", field=name) from None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request becomes a call.

    Attributes:
        session_id: the session it joins; empty: it gets one of its own.
        alone: nobody else reads what it makes: it may end when its client leaves.
        free: another session would do as well.
        last_of: the session that ends with it, being its agent's last request; empty: none.
        agent: whose session is still to be found for it, see `begun`; None: no agent's.
        apart: its call is made in a session of its own, whatever its agent's is.
    """

    session_id: str = ""
    alone: bool = True
    free: bool = False
    last_of: str = ""
    agent: Agent | None = None
    apart: bool = False

    async def found(self, gateway: Gateway) -> Place:
        """The place once its agent's session is there.

        Raises:
            Fault: the manager's.
        """
        if self.agent is None:
            return self
        session_id = await self.agent.session(gateway)
        return replace(
            self,
            session_id="" if self.apart else session_id,
            last_of=session_id if self.agent.final else "",
            agent=None,
        )


def place_of(joining: Joining | None, agent: Agent, *, apart: bool) -> Place:
    """Where a request becomes a call; nothing is made for it yet.

    `apart`: in a session of its own rather than its agent's, if it reads and makes nothing there: it may be
    sent again, and is then found by its key at any time; or it is not to be kept longer than it runs.

    Raises:
        Fault: what is wrong with `joining`, with the path of the field.
    """
    wanted = joining or Joining()
    if wanted.session_id is not None or not agent.chain:
        session_id = wanted.session_id or ""
        check_joining(wanted, joined=bool(session_id))
        return Place(session_id, alone=not session_id)
    check_joining(wanted, joined=True)
    free = not wanted.inputs and wanted.output is None
    if apart and free:
        return Place(agent=agent if agent.final else None, apart=True)
    return Place(alone=wanted.output is None, free=free, agent=agent)


async def begun(gateway: Gateway, place: Place, begin: Callable[[Place], Awaitable[Made]]) -> Made:
    """What `begin` makes of a request that was found good, in its agent's session.

    One that is refused all the same leaves no session that was opened for it.

    Raises:
        Fault: the manager's, and those of `begin`.
    """
    try:
        return await _tried(gateway, place, begin)
    except Fault as fault:
        if place.agent is None or fault.kind is not errors.NOT_FOUND:
            raise
        # Another request of the chain, the first one too, was refused meanwhile and took the session along.
        return await _tried(gateway, place, begin)


async def _tried(gateway: Gateway, place: Place, begin: Callable[[Place], Awaitable[Made]]) -> Made:
    found = await place.found(gateway)
    try:
        return await begin(found)
    except Fault:
        opened = found.session_id or found.last_of
        if place.agent is not None and opened:
            with suppress(Fault):
                await gateway.manager.delete_session(opened, only_empty=True, patient=False)
        raise


async def _agent(request: Request) -> Agent:
    return agent_of(request.headers)


AgentDep = Annotated[Agent, Depends(_agent)]
