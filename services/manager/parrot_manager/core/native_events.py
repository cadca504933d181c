"""What happens to calls that the client runs."""

from __future__ import annotations

from dataclasses import dataclass

from parrot_manager.core.model import Failure, Value


@dataclass(frozen=True, slots=True)
class CallClaimed:
    """A worker of the client takes a call of its that is offered, or keeps one that it has."""

    session_id: str
    call_id: str
    worker: str


@dataclass(frozen=True, slots=True)
class ClaimRenewed:
    """A worker still runs a call."""

    session_id: str
    call_id: str
    worker: str


@dataclass(frozen=True, slots=True)
class NativeDone:
    """A worker hands in all outputs of a call.

    Attributes:
        unclaimed: it does so without a claim, if nobody has one.
    """

    session_id: str
    call_id: str
    worker: str
    values: tuple[Value, ...]
    unclaimed: bool = False


@dataclass(frozen=True, slots=True)
class NativeFailed:
    """A worker's function failed, or a transform of what it reads or made does not apply.

    Attributes:
        unclaimed: as of `NativeDone`.
    """

    session_id: str
    call_id: str
    worker: str
    failure: Failure
    unclaimed: bool = False
