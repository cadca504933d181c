"""One span and one log line a request. Neither holds a body, a query, or a path nobody serves."""

from __future__ import annotations

import time
from typing import Any

import structlog
from opentelemetry import context as otel_context
from opentelemetry.trace import SpanKind, Status, StatusCode
from prometheus_client import Gauge
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parrot_gateway.closing import Closing
from parrot_gateway.metrics import GatewayMetrics
from parrot_gateway.problems import answer_of
from parrot_runtime import errors, telemetry
from parrot_runtime.errors import Fault
from parrot_runtime.ids import is_session_id

log = structlog.get_logger()

_QUIET = {"/healthz", "/readyz"}


class Observed:
    """ASGI middleware: continues the client's trace, logs, and answers what nothing else caught."""

    def __init__(self, app: ASGIApp, metrics: GatewayMetrics, closing: Closing) -> None:
        self._app = app
        self._metrics = metrics
        self._closing = closing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        began = time.monotonic()
        status = 0
        stream: Gauge | None = None

        async def watched_send(message: Message) -> None:
            nonlocal status, stream
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._closing.begun:
                    message = _last_of_its_connection(message)
                self._metrics.answered(_route(scope), time.monotonic() - began)
                if _is_stream(message):
                    stream = self._metrics.opened(_route(scope))
            elif stream is not None:
                self._metrics.sent(len(message.get("body", b"")))
            await send(message)

        token = otel_context.attach(telemetry.extract(headers))
        try:
            with telemetry.tracer().start_as_current_span(scope["method"], kind=SpanKind.SERVER) as span:
                try:
                    await self._app(scope, receive, watched_send)
                # The last resort: whatever a route raises is logged here, and the client is told so.
                except Exception:
                    log.exception("request failed", route=_route(scope))
                    await self._answer(status, scope, receive, watched_send)
                _describe(span, scope, status)
        finally:
            otel_context.detach(token)
            if stream is not None:
                stream.dec()
            self._metrics.over(_route(scope), scope["method"], status, _problem(scope))
            _log(scope, status, time.monotonic() - began, telemetry.trace_id_of(headers))

    async def _answer(self, status: int, scope: Scope, receive: Receive, send: Send) -> None:
        if not status:
            fault = Fault(errors.INTERNAL, "an unexpected error; the gateway's log has it")
            await answer_of(scope["path"], fault)(scope, receive, send)


def _last_of_its_connection(start: Message) -> Message:
    """A stopping gateway is no place to ask again, and clients would, on a connection that stays."""
    return {**start, "headers": [*start["headers"], (b"connection", b"close")]}


def _is_stream(start: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in start["headers"]
    )


def _problem(scope: Scope) -> str:
    fault = scope.get("parrot.fault")
    return fault.kind.type if isinstance(fault, Fault) else ""


def _route(scope: Scope) -> str:
    return getattr(scope.get("route"), "path", "")


def _session_of(scope: Scope) -> str:
    """The session a path names; what has not the form of one may be anything, a secret too."""
    session_id = str(scope.get("path_params", {}).get("session_id", ""))
    return session_id if is_session_id(session_id) else ""


def _describe(span: Any, scope: Scope, status: int) -> None:
    route = _route(scope)
    span.update_name(f"{scope['method']} {route}".strip())
    span.set_attribute("http.request.method", scope["method"])
    span.set_attribute("http.route", route)
    span.set_attribute("http.response.status_code", status)
    if route and (session_id := _session_of(scope)):
        span.set_attribute("parrot.session_id", session_id)
    if status >= 500:
        span.set_status(Status(StatusCode.ERROR))


def _log(scope: Scope, status: int, seconds: float, trace_id: str) -> None:
    route = _route(scope)
    quiet = route in _QUIET and status < 400
    problem = _problem(scope)
    fields: dict[str, object] = {"problem": problem} if problem else {}
    if session_id := _session_of(scope):
        fields["session_id"] = session_id
    if trace_id:
        fields["trace_id"] = trace_id
    write = log.debug if quiet else log.info
    write(
        "request", method=scope["method"], route=route, status=status, ms=round(seconds * 1000, 2), **fields
    )
