"""A session's own span, made at its end: its critical path as attributes, for any OTLP backend.

No span waits for what the manager has to do, nor the other way round: paths are found one at a time beside
it, and where too many wait for that, or a session is too large, its span says so and has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog
from opentelemetry.trace import Span, Status, StatusCode

from parrot_manager import convert
from parrot_manager.core.model import Session, SessionState
from parrot_manager.core.state import LiveSession
from parrot_manager.tasks import Tasks
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import telemetry
from parrot_runtime.critical_path import Analysis, analyse
from parrot_runtime.critical_path.messages import times_of

PREFIX: Final = "parrot.critical_path"
NAMED: Final = 128
"""Calls of the path that are named, from its end back."""
LEFT_OUT: Final = f"{PREFIX}.left_out"
"""Why a span has no path: `TOO_LARGE` or `BUSY`."""
TOO_LARGE: Final = "too_large"
BUSY: Final = "busy"
LARGEST: Final = 4_000
"""Calls and variables of a session whose path is found; that computes for parts of a second."""
WAITING: Final = 16
"""Ended sessions that are kept until their paths are found."""
_NS_PER_MS: Final = 1_000_000
_ANALYST: Final = ThreadPoolExecutor(1, "session-spans")

log = structlog.get_logger()


class SessionSpans:
    """Makes the spans of sessions. A bug in what is told of a session ends no manager."""

    def __init__(self, tasks: Tasks) -> None:
        self._tasks = tasks
        self._waiting = 0

    def ended(self, live: LiveSession) -> None:
        """A session's end is stored. Without a collector there is nothing to do."""
        try:
            span = _begun(live.session)
            if span.is_recording():
                self._tell(span, live)
        # The last resort: sessions end in the middle of what a manager lives on.
        except Exception:
            log.exception("session not told", session_id=live.session.id)

    def _tell(self, span: Span, live: LiveSession) -> None:
        left_out = TOO_LARGE if len(live.calls) + len(live.variables) > LARGEST else ""
        if self._waiting >= WAITING:
            left_out = left_out or BUSY
        if left_out:
            span.set_attribute(LEFT_OUT, left_out)
            _end(span, live.session)
        else:
            self._waiting += 1
            self._tasks.spawn(self._explained(span, live), f"span of {live.session.id}")

    async def _explained(self, span: Span, live: LiveSession) -> None:
        try:
            await _explain(span, live)
        # The same: a task that raises ends the manager.
        except Exception:
            log.exception("critical path not told", session_id=live.session.id)
        finally:
            self._waiting -= 1


def _begun(session: Session) -> Span:
    return telemetry.tracer().start_span(
        "parrot.session",
        context=telemetry.extract(dict(session.trace)),
        start_time=session.created_ms * _NS_PER_MS,
        attributes={"parrot.session_id": session.id, "parrot.state": session.state.name.lower()},
    )


async def _explain(span: Span, live: LiveSession) -> None:
    try:
        loop = asyncio.get_running_loop()
        span.set_attributes(await loop.run_in_executor(_ANALYST, _attributes, live))
    finally:
        _end(span, live.session)


def _end(span: Span, session: Session) -> None:
    if session.state is not SessionState.CLOSED:
        span.set_status(Status(StatusCode.ERROR, session.state.name.lower()))
    span.end(session.ended_ms * _NS_PER_MS)


def _attributes(live: LiveSession) -> dict[str, float | str | list[str]]:
    found = manager_pb2.GetSessionResponse(
        session=convert.to_session(live.session, with_marks=True),
        calls=list(map(convert.to_call, tuple(live.calls.values()))),
        variables=[convert.to_variable(one, live.graph) for one in tuple(live.variables.values())],
        blocks=list(map(convert.to_block, tuple(live.blocks.all.values()))),
    )
    return dict(attributes_of(analyse(times_of(found), live.session.ended_ms)))


def attributes_of(found: Analysis) -> Mapping[str, float | str | list[str]]:
    """What is told of a critical path: times in ms, changes as fractions of the whole."""
    told: dict[str, float | str | list[str]] = {f"{PREFIX}.total_ms": found.total_ms}
    told |= {f"{PREFIX}.{stage}_ms": ms for stage, ms in found.stages.items()}
    told |= {f"{PREFIX}.without_{one.stage}.change": one.change for one in found.what_ifs}
    calls = list(dict.fromkeys(segment.node_id for segment in found.segments if segment.node_id))
    told[f"{PREFIX}.calls"] = calls[-NAMED:]
    return told
