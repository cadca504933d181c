"""W3C trace context (https://www.w3.org/TR/trace-context/): one trace a session.

When the application traces with OpenTelemetry and a span is current where the session is made, the
session's requests are that span's children. Otherwise the session belongs to the trace that the environment
names (TRACEPARENT), or else has one of its own.
"""

from __future__ import annotations

import os
import re
import secrets
import sys
from dataclasses import dataclass
from typing import Any

_TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})\Z")


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace of a session.

    Attributes:
        trace_id: 32 hex digits.
        parent_span_id: the application's span, 16 hex digits; empty when it has none.
        sampled: whether spans are to be kept.
    """

    trace_id: str
    parent_span_id: str = ""
    sampled: bool = True

    def traceparent(self) -> str:
        """The header for one request."""
        span_id = self.parent_span_id or secrets.token_hex(8)
        return f"00-{self.trace_id}-{span_id}-{'01' if self.sampled else '00'}"


def start() -> Trace:
    """The trace of the application's current span, or a new one."""
    # Not imported: an application that has not loaded it does not trace with it.
    opentelemetry: Any = sys.modules.get("opentelemetry.trace")
    if opentelemetry is not None:
        context = opentelemetry.get_current_span().get_span_context()
        if context.is_valid:
            return Trace(
                format(context.trace_id, "032x"),
                format(context.span_id, "016x"),
                bool(context.trace_flags & 1),
            )
    return _inherited() or Trace(secrets.token_hex(16))


def _inherited() -> Trace | None:
    """The trace that whoever started this process put into its environment, as OpenTelemetry has it."""
    match = _TRACEPARENT.match(os.environ.get("TRACEPARENT", ""))
    if match is None or not int(match[1], 16) or not int(match[2], 16):
        return None
    return Trace(match[1], match[2], bool(int(match[3], 16) & 1))
