"""One span a call, under its session's trace, with a child for each phase; the engine's hang under it."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.support.fake_engine import attached
from tests.support.manager import call, eventually, serving

from parrot_manager.store.base import Store
from parrot_runtime import telemetry
from parrot_runtime.values.bus import Bus

pytestmark = pytest.mark.anyio


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Keeps every span that ends."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(telemetry, "tracer", lambda: provider.get_tracer("parrot"))
    return kept


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """The spans of a name that have ended."""
    return [span for span in exporter.get_finished_spans() if span.name == name]


async def test_a_call_is_one_span_with_its_phases_and_the_engines_hang_under_it(
    memory: Store, bus: Bus, exporter: InMemorySpanExporter
) -> None:
    async with serving(memory, bus) as manager, attached(manager.address, bus) as engine:
        await manager.client.engine_ready()
        with telemetry.tracer().start_as_current_span("client") as client:
            session = await manager.client.open()
            await manager.client.submit(session, [call("one", ["a"], ["b"], model="m")], {"a": "x"})
        await manager.client.ended(session, "b")
        trace_id = client.get_span_context().trace_id

        async def ended() -> list[ReadableSpan]:
            return named(exporter, "parrot.call")

        (span,) = await eventually(ended)
        assert span.context is not None
        assert span.context.trace_id == trace_id
        assert span.attributes is not None
        wanted = {
            "parrot.session_id": session,
            "parrot.call_id": "c-1",
            "parrot.state": "done",
            "parrot.objective": "latency",
            "gen_ai.usage.input_tokens": 7,
            "gen_ai.usage.output_tokens": 5,
            "gen_ai.request.model": "m",
        }
        assert wanted.items() <= dict(span.attributes).items()
        assert str(span.attributes["parrot.placement"]).startswith("e-1: ")
        assert int(str(span.attributes["parrot.dispatch_ms"])) < 5_000
        for phase in ("waiting_for_inputs", "queue", "commit"):
            (child,) = named(exporter, phase)
            assert child.parent is not None
            assert child.parent.span_id == span.context.span_id
        told = trace.get_current_span(telemetry.extract(engine.programs[0].trace_context))
        assert told.get_span_context().span_id == span.context.span_id
        graph = await manager.client.session(session)
        assert graph.session.trace_id == format(trace_id, "032x")


async def test_after_a_restart_the_spans_stay_in_the_sessions_trace(
    memory: Store, bus: Bus, exporter: InMemorySpanExporter
) -> None:
    async with serving(memory, bus) as manager:
        with telemetry.tracer().start_as_current_span("client") as client:
            session = await manager.client.open()
            await manager.client.submit(session, [call("one", [], ["a"])])
    async with serving(memory, bus) as manager, attached(manager.address, bus):
        await manager.client.ended(session, "a")

        async def ended() -> list[ReadableSpan]:
            return named(exporter, "parrot.call")

        (span,) = await eventually(ended)
        assert span.context is not None
        assert span.context.trace_id == client.get_span_context().trace_id
