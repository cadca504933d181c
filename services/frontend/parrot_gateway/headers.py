"""Headers and query parameters that several routes take."""

from __future__ import annotations

import re
from typing import Annotated, Final

from fastapi import Depends, Header, Query

from parrot_gateway.sent import CriteriaKind
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault

KEY_CHARS: Final = 200
_KEY: Final = re.compile(rf"[!-~]{{1,{KEY_CHARS}}}\Z")


async def _key(
    idempotency_key: Annotated[
        str | None,
        Header(
            description=f"1 to {KEY_CHARS} visible ASCII characters, the client's choice: a request that is "
            "sent again with its key is done once and answered alike; with another body it is a 409",
        ),
    ] = None,
) -> str:
    if idempotency_key is not None and not _KEY.match(idempotency_key):
        raise Fault(
            errors.INVALID_REQUEST,
            f"Idempotency-Key is 1 to {KEY_CHARS} visible ASCII characters",
            field="Idempotency-Key",
        )
    return idempotency_key or ""


async def _wanted(
    criteria: Annotated[
        CriteriaKind | None,
        Query(description="what this reader wants of the variable; stricter than before hastens it"),
    ] = None,
    deadline_unix_ms: Annotated[
        int, Query(ge=0, le=limits.UNIX_MS, description="for criteria=deadline: when")
    ] = 0,
) -> manager_pb2.Criteria | None:
    return criteria_of(criteria, deadline_unix_ms)


def criteria_of(
    kind: CriteriaKind | None, deadline_unix_ms: int, at: str = ""
) -> manager_pb2.Criteria | None:
    """What a reader wants, for the manager; None: it does not say. `at`: where it stands in the request.

    Raises:
        Fault: `invalid_request`, for a deadline without a time, or a time without a deadline.
    """
    if (kind == "deadline") != (deadline_unix_ms > 0):
        field = f"{at}.deadline_unix_ms" if at else "deadline_unix_ms"
        raise Fault(
            errors.INVALID_REQUEST, f"{field}: a deadline has a time, and nothing else has", field=field
        )
    if kind is None:
        return None
    value = manager_pb2.ObjectiveKind.Value(f"OBJECTIVE_KIND_{kind.upper()}")
    return manager_pb2.Criteria(kind=value, deadline_unix_ms=deadline_unix_ms)


KeyDep = Annotated[str, Depends(_key)]
WantedDep = Annotated[manager_pb2.Criteria | None, Depends(_wanted)]
