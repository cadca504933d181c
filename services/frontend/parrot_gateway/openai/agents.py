"""What agents say of themselves in headers: which chain of requests is one, whose child it is, how urgent.

The names are those of agents that are about, and of servers they are pointed at. Dynamo's come first
(docs.nvidia.com/dynamo, "Session IDs" and "Priority Scheduling"), then those that Claude Code, Codex and
OpenCode send by themselves; `x-slo-ttft-ms` is llm-d's. The requests of one chain become calls of one
session: one graph to look at, one trace, one thing to cancel.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Final

from fastapi import Depends, Request

from parrot_gateway.headers import criteria_of
from parrot_gateway.openai.joining import Joining, check_joining
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from parrot_gateway.gateway import Gateway

FULL: Final = frozenset({errors.SESSION_ENDED, errors.TOO_LARGE})
"""What a chain's session refuses a request with that another session may take."""
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
    """

    session_id: str = ""
    alone: bool = True
    free: bool = False
    last_of: str = ""


async def place_of(gateway: Gateway, joining: Joining | None, agent: Agent, *, keyed: bool) -> Place:
    """Where a request becomes a call; `keyed`: it may be sent again.

    Raises:
        Fault: what is wrong with `joining`, with the path of the field; the manager's.
    """
    wanted = joining or Joining()
    if wanted.session_id is not None or not agent.chain:
        session_id = wanted.session_id or ""
        check_joining(wanted, session_id)
        return Place(session_id, alone=not session_id)
    session_id = await agent.session(gateway)
    check_joining(wanted, session_id)
    free = not wanted.inputs and wanted.output is None
    last_of = session_id if agent.final else ""
    if keyed and free:
        # What is sent again is found by its key in a session of its own, and in the chain's for a while.
        return Place(last_of=last_of)
    return Place(session_id, alone=wanted.output is None, free=free, last_of=last_of)


async def _agent(request: Request) -> Agent:
    return agent_of(request.headers)


AgentDep = Annotated[Agent, Depends(_agent)]
