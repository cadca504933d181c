"""Where the prototype's functions run: the process's current machine, else the session they are called in."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from parrot.session import ambient

if TYPE_CHECKING:
    from parrot.nodes import Call
    from parrot.session import Session


class Machine(Protocol):
    """What a virtual machine decides for the calls made in it."""

    @property
    def sends_at_once(self) -> bool:
        """Whether calls are sent when they are made; else with the first wait."""
        ...

    @property
    def session(self) -> Session | None:
        """What they join."""
        ...


_machine: Machine | None = None
_log = logging.getLogger("parrot")


def machine() -> Machine | None:
    """The process's current machine, in every thread."""
    return _machine


def enter(entered: Machine | None) -> Machine | None:
    """Makes a machine the current one; the one that was."""
    global _machine
    before, _machine = _machine, entered
    return before


def session() -> Session | None:
    """What a call made here joins; None: nothing."""
    return ambient()


def session_of(name: str) -> Session | None:
    """The same for a call of a function, with a warning where there is nothing to join."""
    joined = session()
    if joined is None:
        _log.warning("%s was called outside of any session: nothing runs", name)
    return joined


def add(joined: Session, call: Call) -> None:
    """Adds a call, and sends it where that is not left to the first wait.

    Raises:
        SessionError: a variable can't be used so, or the session has ended.
    """
    joined._add(call)
    if call.criteria or _sends_at_once(joined):
        joined._flush_soon()


async def sent() -> None:
    """Returns when the calls made here were accepted, where they are sent at once."""
    joined = session()
    if joined is not None and _sends_at_once(joined):
        await joined.aflush()


def _sends_at_once(joined: Session) -> bool:
    return _machine is not None and _machine.session is joined and _machine.sends_at_once
