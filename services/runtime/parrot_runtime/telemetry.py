"""Traces and logs.

Traces leave the process only when an OTLP endpoint is set, from a background thread with short
time-outs: a dead collector slows nothing and is given up at shutdown. A span is made per call and
phase, never per token. The W3C context travels in HTTP and RPC metadata, in programs, and in the
headers of bus messages.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Mapping
from typing import Final

import structlog
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from parrot_runtime.settings import ServiceSettings

EXPORT_TIMEOUT_S: Final = 2.0
_propagator = TraceContextTextMapPropagator()


def setup_logging(settings: ServiceSettings, service: str) -> None:
    """Structured logs on stderr: JSON lines, or a console's colours."""
    level = logging.getLevelNamesMapping()[settings.log_level.upper()]
    renderer: structlog.types.Processor = (
        structlog.processors.JSONRenderer()
        if settings.log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(service=service)
    logging.basicConfig(level=max(level, logging.WARNING), stream=sys.stderr)


def setup_tracing(settings: ServiceSettings, service: str, instance: str = "") -> None:
    """Makes this process's tracer; without an endpoint, spans carry the context and go nowhere."""
    propagate.set_global_textmap(_propagator)
    if not settings.otlp_endpoint:
        return
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    resource = Resource.create(
        {"service.name": f"parrot-{service}", "service.instance.id": instance or service}
    )
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    exporter = OTLPSpanExporter(
        endpoint=settings.otlp_endpoint,
        insecure=not settings.otlp_endpoint.startswith("https:"),
        timeout=EXPORT_TIMEOUT_S,
    )
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    trace.set_tracer_provider(provider)
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)


def shutdown_tracing(timeout_s: float = EXPORT_TIMEOUT_S) -> None:
    """Sends what is left, for at most `timeout_s`; a collector that does not answer is left behind."""
    provider = trace.get_tracer_provider()
    if not isinstance(provider, TracerProvider):
        return
    thread = threading.Thread(target=provider.shutdown, daemon=True)
    thread.start()
    thread.join(timeout_s)


def tracer() -> Tracer:
    """The tracer every span of ours is made with."""
    return trace.get_tracer("parrot")


def inject(span: Span | None = None) -> dict[str, str]:
    """The W3C context of `span`, or of the current one, as headers; empty when there is none."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span) if span is not None else None)
    return carrier


def extract(carrier: Mapping[str, str]) -> Context:
    """The context that W3C headers carry; an empty one when they carry none or a broken one."""
    return _propagator.extract(dict(carrier))


def trace_id_of(carrier: Mapping[str, str]) -> str:
    """The trace id in W3C headers, 32 hex digits, or the empty text."""
    context = trace.get_current_span(extract(carrier)).get_span_context()
    return format(context.trace_id, "032x") if context.is_valid else ""
