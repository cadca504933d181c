"""A session's span never costs the manager more than it may, and says why it has no path."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, Never

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.support.manager import eventually

from parrot_manager import session_spans
from parrot_manager.core.model import Session, SessionState, Variable
from parrot_manager.core.state import LiveSession
from parrot_manager.session_spans import BUSY, LARGEST, LEFT_OUT, PREFIX, TOO_LARGE, WAITING, SessionSpans
from parrot_manager.tasks import Tasks
from parrot_runtime import telemetry

pytestmark = pytest.mark.anyio


def ended(name: str, state: SessionState = SessionState.CLOSED, variables: int = 1) -> LiveSession:
    """A session that took 5 ms."""
    live = LiveSession(Session(name, "t", "", state, created_ms=1_000, deadline_ms=9_000, ended_ms=1_005))
    for number in range(variables):
        live.put_variable(Variable(name, f"v{number}", f"v{number}"))
    return live


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Keeps every span that ends."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(telemetry, "tracer", lambda: provider.get_tracer("parrot"))
    return kept


@pytest.fixture
def analyst(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    """Whoever finds the paths, of this test alone."""
    with ThreadPoolExecutor(1) as mine:
        monkeypatch.setattr(session_spans, "_ANALYST", mine)
        yield mine


def told(exporter: InMemorySpanExporter) -> dict[str, dict[str, Any]]:
    """What is told, by session."""
    spans: list[dict[str, Any]] = [dict(span.attributes or {}) for span in exporter.get_finished_spans()]
    return {str(span["parrot.session_id"]): span for span in spans}


async def test_where_too_many_wait_spans_end_without_their_paths(
    exporter: InMemorySpanExporter, analyst: ThreadPoolExecutor
) -> None:
    free = Event()
    analyst.submit(free.wait)
    try:
        async with asyncio.TaskGroup() as group:
            spans = SessionSpans(Tasks(group))
            for number in range(WAITING + 3):
                spans.ended(ended(f"s-{number}"))
            assert [one[LEFT_OUT] for one in told(exporter).values()] == [BUSY] * 3
            free.set()

            async def all_told() -> bool:
                return len(told(exporter)) == WAITING + 3

            await eventually(all_told)
            # Whoever waited has made room.
            spans.ended(ended("later"))
    finally:
        free.set()
    found = told(exporter)
    waited = [f"s-{number}" for number in range(WAITING)]
    assert [found[name].get(f"{PREFIX}.total_ms") for name in [*waited, "later"]] == [5.0] * (WAITING + 1)


@pytest.mark.parametrize(("variables", "left_out"), [(LARGEST, None), (LARGEST + 1, TOO_LARGE)])
async def test_a_session_that_is_too_large_has_a_span_and_no_path(
    exporter: InMemorySpanExporter, analyst: ThreadPoolExecutor, variables: int, left_out: str | None
) -> None:
    async with asyncio.TaskGroup() as group:
        SessionSpans(Tasks(group)).ended(ended("s", SessionState.CANCELLED, variables))
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert told(exporter)["s"].get(LEFT_OUT) == left_out
    assert (f"{PREFIX}.total_ms" in told(exporter)["s"]) is (left_out is None)


@pytest.mark.parametrize("broken", ["_begun", "_attributes", "_end"])
async def test_what_breaks_in_telling_a_session_ends_no_manager(
    exporter: InMemorySpanExporter, analyst: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fails(*_: object) -> Never:
        raise ValueError(broken)

    monkeypatch.setattr(session_spans, "WAITING", 1)
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group)
        spans = SessionSpans(tasks)

        async def quiet() -> bool:
            return not tasks._running

        with monkeypatch.context() as patched:
            patched.setattr(session_spans, broken, fails)
            spans.ended(ended("first"))
            await eventually(quiet)
        spans.ended(ended("last"))
    assert f"{PREFIX}.total_ms" in told(exporter)["last"]


async def test_without_a_collector_nothing_is_kept_for_the_spans() -> None:
    async with asyncio.TaskGroup() as group:
        tasks = Tasks(group)
        SessionSpans(tasks).ended(ended("s"))
        assert not tasks._running
