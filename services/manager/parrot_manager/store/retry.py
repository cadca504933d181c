"""Which of the database's errors pass, and how long they are waited out.

(SQLSTATE classes: PostgreSQL manual, appendix A.)
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import asyncpg
import sqlalchemy.exc
import structlog

from parrot_runtime import errors
from parrot_runtime.errors import Fault

FIRST_DELAY_S: Final = 0.02
LONGEST_DELAY_S: Final = 1.0
RETRY_AFTER_MS: Final = 1000
TROUBLE: Final = (sqlalchemy.exc.SQLAlchemyError, asyncpg.PostgresError, asyncpg.InterfaceError, OSError)
"""What the database and the way to it raise. (A time-out is an OSError.)"""

# Serialization failure, deadlock, the ways of a server that stops or starts, a statement or an idle
# session that somebody ended, a lock that was not to be had, a transaction that stood still for too long,
# and a server that takes no writes now, as a standby does that is about to be the primary.
_PASSING: Final = {
    "40001",
    "40P01",
    "57P01",
    "57P02",
    "57P03",
    "57014",
    "57P05",
    "55P03",
    "25P03",
    "25006",
}
# No connection; no disk, memory or connections left.
_PASSING_CLASSES: Final = ("08", "53")
_NO_CONNECTION: Final = (
    OSError,
    sqlalchemy.exc.TimeoutError,
    sqlalchemy.exc.InterfaceError,
    asyncpg.InterfaceError,
)

T = TypeVar("T")


class Observer:
    """Told how the store's operations go; this one keeps it for itself."""

    def took(self, what: str, seconds: float) -> None:
        """An operation is over, with its retries, well or badly."""

    def failed(self) -> None:
        """The database, or the way to it, failed a try."""


log = structlog.get_logger()


def passes(error: BaseException) -> bool:
    """Whether the same statement may succeed a little later."""
    if isinstance(error, _NO_CONNECTION):
        return True
    driver = error.orig if isinstance(error, sqlalchemy.exc.DBAPIError) else error
    state = str(getattr(driver, "sqlstate", None) or "")
    if state in _PASSING or state.startswith(_PASSING_CLASSES):
        return True
    return isinstance(error, sqlalchemy.exc.DBAPIError) and error.connection_invalidated


async def retrying(
    operation: Callable[[], Awaitable[T]], what: str, deadline_s: float, observer: Observer | None = None
) -> T:
    """What `operation` returns, tried again for as long as its errors pass.

    Raises:
        Fault: `unavailable`, when it did not succeed within `deadline_s`.
    """
    observer = observer or Observer()
    began = time.monotonic()
    try:
        return await _retrying(operation, what, began + deadline_s, observer)
    finally:
        observer.took(what, time.monotonic() - began)


async def _retrying(operation: Callable[[], Awaitable[T]], what: str, end: float, observer: Observer) -> T:
    delay_s = FIRST_DELAY_S
    while True:
        try:
            async with asyncio.timeout(max(end - time.monotonic(), FIRST_DELAY_S)):
                return await operation()
        except TROUBLE as error:
            observer.failed()
            if not passes(error):
                raise
            if time.monotonic() + delay_s >= end:
                raise Fault(
                    errors.UNAVAILABLE,
                    "the database can't be reached; nothing is lost, try again",
                    retry_after_ms=RETRY_AFTER_MS,
                ) from error
            log.warning("database retried", what=what, error=type(error).__name__)
        await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))  # noqa: S311 - spreads retries
        delay_s = min(delay_s * 2, LONGEST_DELAY_S)
