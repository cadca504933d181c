"""The engine's spans: one a call, and one a phase of each output. Names follow OpenTelemetry's GenAI
conventions where they have one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind, Status, StatusCode

from parrot_engine.backends.base import ModelInfo, Phases
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import telemetry
from parrot_runtime.errors import Fault


@contextmanager
def call_span(
    program: engine_pb2.RunProgram, info: ModelInfo, engine_id: str, arrived_ns: int
) -> Iterator[Span]:
    """The span of a program, from its arrival; the current one within the block."""
    span = telemetry.tracer().start_span(
        "engine.call",
        context=telemetry.extract(program.trace_context),
        kind=SpanKind.CONSUMER,
        start_time=arrived_ns,
        attributes={
            "gen_ai.operation.name": "text_completion",
            "gen_ai.request.model": info.model,
            "parrot.session.id": program.ref.session_id,
            "parrot.call.id": program.ref.call_id,
            "parrot.call.name": program.name,
            "parrot.attempt": program.ref.attempt,
            "parrot.engine.id": engine_id,
        },
    )
    with trace.use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield span
        except Fault as fault:
            span.set_attribute("error.type", fault.kind.type)
            span.set_status(Status(StatusCode.ERROR, fault.kind.type))
            raise


def link_inputs(span: Span, traces: Mapping[str, Mapping[str, str]]) -> None:
    """Links a call to the spans that wrote its inputs; `traces`: by variable, their W3C headers."""
    for variable_id, headers in traces.items():
        writer = trace.get_current_span(telemetry.extract(headers)).get_span_context()
        if writer.is_valid:
            span.add_link(writer, {"parrot.variable.id": variable_id})


def record_usage(span: Span, usage: common_pb2.Usage, timings: common_pb2.Timings) -> None:
    """Writes what a call used on its span, and what was prefilled while it waited."""
    span.set_attributes(
        {
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
            "parrot.usage.cached_tokens": usage.cached_tokens,
            "parrot.static_prefill.tokens": timings.static_prefill_tokens,
            "parrot.static_prefill.ms": timings.static_prefill_ms,
            "parrot.dynamic_prefill.tokens": timings.dynamic_prefill_tokens,
            "parrot.dynamic_prefill.ms": timings.dynamic_prefill_ms,
        }
    )


def record_phases(variable_id: str, waited_from_ns: int, asked_ns: int, phases: Phases) -> None:
    """Spans of one output's queue, prefill and decode, under the current span.

    Args:
        waited_from_ns: start of the queue's span; `asked_ns` is when the backend was asked.
    """
    start = waited_from_ns
    end = asked_ns
    for name, lasted_ms in (
        ("engine.queue", phases.queue_ms),
        ("engine.prefill", phases.prefill_ms),
        ("engine.decode", phases.decode_ms),
    ):
        end += int(lasted_ms * 1e6)
        span = telemetry.tracer().start_span(
            name, start_time=start, attributes={"parrot.variable.id": variable_id}
        )
        span.end(end)
        start = end
