"""Lists of sessions: a page, and where the next one begins."""

from __future__ import annotations

from dataclasses import dataclass

from parrot_manager.core.model import Session
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import is_session_id


@dataclass(frozen=True, slots=True)
class Place:
    """A session's place in a list that has the newest first."""

    created_ms: int
    session_id: str

    @classmethod
    def of(cls, session: Session) -> Place:
        """A session's own."""
        return cls(session.created_ms, session.id)

    @classmethod
    def parse(cls, text: str, field: str) -> Place:
        """The place that `str` wrote down.

        Raises:
            Fault: `invalid_request`, when it is none.
        """
        created, _, session_id = text.partition("-")
        # More digits than these are no time, and no number of the database's.
        if not (created.isascii() and created.isdigit() and len(created) < 19 and is_session_id(session_id)):
            raise Fault(
                errors.INVALID_REQUEST,
                f"{field} is no place in a list of sessions; send the `next` of the page before, or none",
                field=field,
            )
        return cls(int(created), session_id)

    def __str__(self) -> str:
        return f"{self.created_ms}-{self.session_id}"


@dataclass(frozen=True, slots=True)
class ListedSession:
    """A session, and how many calls it has."""

    session: Session
    calls: int = 0
    calls_ended: int = 0
