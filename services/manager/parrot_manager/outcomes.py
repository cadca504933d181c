"""What comes of applications and calls, for Prometheus: how long they took, and whether that was in time.

Names that OpenTelemetry's conventions for generative AI have (`gen_ai.*`, in development there) are theirs,
as Prometheus spells them; the others are the manager's own.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from parrot_manager.core.criteria import Criteria, ObjectiveKind
from parrot_manager.core.model import (
    NO_USAGE,
    Call,
    CallState,
    SessionState,
    Variable,
    VariableState,
)
from parrot_manager.core.state import LiveSession

PROVIDER: Final = "parrot"
_CALL: Final = {"gen_ai_operation_name": "text_completion", "gen_ai_provider_name": PROVIDER}
_MODEL: Final = "gen_ai_request_model"
# The boundaries that the conventions ask for.
_SECONDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_FIRST_S: Final = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
)
_TOKEN_S: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_TOKENS: Final = tuple(4.0**power for power in range(14))
# An application may take longer than a call: up to three hours.
_WORKFLOW_S: Final = (*_SECONDS, 163.84, 327.68, 655.36, 1310.72, 2621.44, 5242.88, 10485.76)


class Outcomes:
    """Counters and histograms of what has ended."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """`registry`: where they are served from."""
        call = (*_CALL, _MODEL)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(f"gen_ai_{name}", text, labels, buckets=buckets, registry=registry)

        self._duration = histogram(
            "server_request_duration_seconds",
            "From a call's inputs being there to its end",
            _SECONDS,
            *call,
            "error_type",
        )
        self._first = histogram(
            "server_time_to_first_token_seconds",
            "From a call's inputs being there to its first token",
            _FIRST_S,
            *call,
        )
        self._token = histogram(
            "server_time_per_output_token_seconds",
            "Between two tokens of a call, behind its first",
            _TOKEN_S,
            *call,
        )
        self._tokens = histogram(
            "client_token_usage", "Tokens of calls that are done", _TOKENS, *call, "gen_ai_token_type"
        )
        self._workflow = histogram(
            "workflow_duration_seconds",
            "From an application's session being opened to its end",
            _WORKFLOW_S,
            "gen_ai_operation_name",
            "error_type",
        )
        self._sessions = Counter(
            "parrot_manager_sessions_ended", "Sessions whose end is stored", ["outcome"], registry=registry
        )
        self._good = Counter(
            "parrot_manager_sessions_good",
            "Sessions that ended with all they were asked for, in time",
            registry=registry,
        )
        self._deadlines = Counter(
            "parrot_manager_deadlines", "Outputs that had a deadline", ["met"], registry=registry
        )

    def call(self, call: Call, model: str) -> None:
        """A call's end is stored. `model`: as metrics name what it asks for."""
        if not 0 < call.ready_ms <= call.ended_ms or call.native is not None:
            return
        labels = {**_CALL, _MODEL: model}
        took_ms = call.ended_ms - call.ready_ms
        error = "" if call.state is CallState.DONE else _error_of(call)
        self._duration.labels(**labels, error_type=error).observe(took_ms / 1000)
        # One that was finished from what the bus had of a lost attempt: nobody told its tokens and times.
        if call.state is not CallState.DONE or call.usage == NO_USAGE:
            return
        decode_ms = call.timings.decode_ms
        self._first.labels(**labels).observe(max(0.0, took_ms - decode_ms) / 1000)
        if call.usage.output_tokens > 1:
            self._token.labels(**labels).observe(decode_ms / (call.usage.output_tokens - 1) / 1000)
        for kind, tokens in (("input", call.usage.prompt_tokens), ("output", call.usage.output_tokens)):
            self._tokens.labels(**labels, gen_ai_token_type=kind).observe(tokens)

    def variable(self, live: LiveSession, variable: Variable) -> None:
        """A variable's end is stored; it counts if somebody wants it by a time."""
        met = _met(live, variable)
        if met is not None:
            self._deadlines.labels("yes" if met else "no").inc()

    def session(self, live: LiveSession) -> None:
        """A session's end is stored."""
        session = live.session
        outcome = session.state.name.lower()
        closed = session.state is SessionState.CLOSED
        self._sessions.labels(outcome).inc()
        self._workflow.labels("invoke_workflow", "" if closed else outcome).observe(
            max(0, session.ended_ms - session.created_ms) / 1000
        )
        if closed and live.calls and is_good(live):
            self._good.inc()


def is_good(live: LiveSession) -> bool:
    """Whether nothing failed in a session, and what was wanted by a time was there by then."""
    failed = any(call.state is CallState.FAILED for call in live.calls.values())
    return not failed and False not in (_met(live, variable) for variable in live.variables.values())


def _met(live: LiveSession, variable: Variable) -> bool | None:
    """Whether a variable was there by its deadline; None: it has none, or its making was called off."""
    wanted = _wanted(live, variable)
    if wanted is None or wanted.kind is not ObjectiveKind.DEADLINE:
        return None
    if variable.state is VariableState.READY:
        return variable.ready_ms <= wanted.deadline_ms
    return False if variable.state is VariableState.FAILED else None


def _wanted(live: LiveSession, variable: Variable) -> Criteria | None:
    """What its readers want of it: what they said or, if it is the application's end, said of the session."""
    if variable.criteria is not None:
        return variable.criteria
    return None if live.graph.get_consumers(variable.id) else live.session.criteria


def _error_of(call: Call) -> str:
    if call.failure is not None and call.state is CallState.FAILED:
        return call.failure.type if call.failure.known else "other"
    return call.state.name.lower()
