"""One span a call, from accepted to ended, and one for each phase the manager sees of it."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, Status, StatusCode

from parrot_manager import clock
from parrot_manager.core.model import Call, CallState, Ref, Session
from parrot_runtime import telemetry

_NS_PER_MS = 1_000_000


class CallSpans:
    """The spans of the calls that have not ended, by session."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, Span]] = {}
        self._finishing_ms: dict[str, dict[Ref, int]] = {}

    def accepted(self, calls: Iterable[Call]) -> None:
        """Calls were accepted in the current span."""
        for call in calls:
            self._start(call, None)

    def restored(self, session: Session, calls: Iterable[Call]) -> None:
        """Unfinished calls came back from the store; their spans hang under the session's trace."""
        parent = telemetry.extract(dict(session.trace))
        for call in calls:
            if not call.state.ended:
                self._start(call, parent)

    def headers(self, call: Call) -> dict[str, str]:
        """W3C headers that make spans elsewhere children of the call's."""
        span = self._open.get(call.session_id, {}).get(call.id)
        return telemetry.inject(span) if span is not None else {}

    def finishing(self, ref: Ref) -> None:
        """The engine is done with an attempt; its commit begins."""
        self._finishing_ms.setdefault(ref.session_id, {})[ref] = clock.now_ms()

    def ended(self, call: Call) -> None:
        """A call's end is stored."""
        span = self._open.get(call.session_id, {}).pop(call.id, None)
        finishing_ms = self._finishing_ms.get(call.session_id, {}).pop(call.ref, 0)
        if span is None:
            return
        committed_ms = max(clock.now_ms(), call.ended_ms)
        _phase(span, "waiting_for_inputs", call.accepted_ms, call.ready_ms)
        _phase(span, "queue", call.ready_ms, call.dispatched_ms)
        _phase(span, "commit", finishing_ms, committed_ms)
        _describe(span, call)
        span.end(committed_ms * _NS_PER_MS)

    def forget(self, session_id: str) -> None:
        """A session left memory."""
        self._open.pop(session_id, None)
        self._finishing_ms.pop(session_id, None)

    def _start(self, call: Call, parent: Context | None) -> None:
        attributes = {
            "parrot.session_id": call.session_id,
            "parrot.call_id": call.id,
            "parrot.name": call.name,
        }
        self._open.setdefault(call.session_id, {})[call.id] = telemetry.tracer().start_span(
            "parrot.call", context=parent, start_time=call.accepted_ms * _NS_PER_MS, attributes=attributes
        )


def _phase(parent: Span, name: str, start_ms: int, end_ms: int) -> None:
    if 0 < start_ms <= end_ms:
        context = trace.set_span_in_context(parent)
        span = telemetry.tracer().start_span(name, context=context, start_time=start_ms * _NS_PER_MS)
        span.end(end_ms * _NS_PER_MS)


def _describe(span: Span, call: Call) -> None:
    span.set_attribute("parrot.state", call.state.name.lower())
    span.set_attribute("parrot.attempt", call.attempt)
    span.set_attribute("parrot.engine_id", call.engine_id)
    span.set_attribute("parrot.placement", call.placement)
    span.set_attribute("parrot.losses", call.losses)
    if 0 < call.ready_ms <= call.dispatched_ms:
        span.set_attribute("parrot.dispatch_ms", call.dispatched_ms - call.ready_ms)
    if call.objective is not None:
        span.set_attribute("parrot.objective", call.objective.kind.name.lower())
        span.set_attribute("parrot.objective.reason", call.objective.reason)
        span.set_attribute("parrot.objective.latest_finish_unix_ms", call.objective.latest_finish_ms)
    span.set_attribute("gen_ai.request.model", call.model)
    span.set_attribute("gen_ai.usage.input_tokens", call.usage.prompt_tokens)
    span.set_attribute("gen_ai.usage.output_tokens", call.usage.output_tokens)
    span.set_attribute("parrot.usage.cached_tokens", call.usage.cached_tokens)
    if call.state is not CallState.DONE:
        span.set_status(Status(StatusCode.ERROR, call.failure.type if call.failure else ""))
