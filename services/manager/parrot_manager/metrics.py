"""What a manager counts, for Prometheus. `gauges` has what is looked up when it is asked for."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from parrot_manager.core.commands import Changes
from parrot_manager.core.model import Call, CallState
from parrot_manager.core.state import LiveSession
from parrot_manager.outcomes import Outcomes
from parrot_manager.store.retry import Observer

ANY_MODEL: Final = "any"
"""How calls are counted that ask for no model by name."""
OTHER: Final = "other"
NO_OBJECTIVE: Final = "none"
"""How calls are counted of which nothing was deduced: those of very large sessions."""
_LONG_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_SHORT_S: Final = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_RPC_S: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0)


class ManagerMetrics(Observer):
    """Counters and histograms of one manager."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """`registry`: where they are served from; None: nowhere."""
        self.registry = registry or CollectorRegistry()

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"parrot_manager_{name}", text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            full = f"parrot_manager_{name}"
            return Histogram(full, text, labels, buckets=buckets, registry=self.registry)

        self._ended = counter("calls_ended", "Calls whose end is stored", "outcome")
        self._queue = histogram(
            "queue_seconds",
            "How long calls were ready before their first dispatch",
            _LONG_S,
            *("model", "objective"),
        )
        self._retries = counter("retries", "Dispatches of calls that were dispatched before")
        self._failovers = counter("failovers", "Dispatches of calls whose attempt before was lost or failed")
        self._decision = histogram("decision_seconds", "What the core takes for one event", _SHORT_S)
        self._lost = counter("engines_lost", "Engines that went without a word")
        self._rpcs = histogram("rpc_seconds", "RPCs with one answer", _RPC_S, "method", "code")
        self._refused = counter("refused", "RPCs that were refused, by the problem's type", "type")
        self._store = histogram(
            "store_seconds", "Operations on the store, retries included", _RPC_S, "operation"
        )
        self._troubles = counter("store_errors", "Tries of operations on the store that failed")
        self._outcomes = Outcomes(self.registry)

    def committed(self, live: LiveSession | None, changes: Changes) -> None:
        """Changes are stored. `live`: their session, if it is in memory."""
        for call in changes.calls:
            if call.state.ended:
                self._count(call)
                # A model that no engine served may have any name.
                self._outcomes.call(call, (call.model or ANY_MODEL) if call.engine_id else OTHER)
        if live is None:
            return
        for variable in changes.variables:
            if variable.state.ended:
                self._outcomes.variable(live, variable)
        if changes.session is not None and changes.session.state.ended:
            self._outcomes.session(live)

    def _count(self, call: Call) -> None:
        if call.state is CallState.FAILED and call.failure is not None:
            outcome = call.failure.type if call.failure.known else OTHER
        else:
            outcome = call.state.name.lower()
        self._ended.labels(outcome).inc()

    def dispatched(self, call: Call) -> None:
        """A call was sent to an engine; one that went ahead of its inputs was never ready before."""
        if call.attempt > 1:
            self._retries.inc()
            if call.losses:
                self._failovers.inc()
        elif 0 < call.ready_ms <= call.dispatched_ms:
            objective = call.objective.kind.name.lower() if call.objective is not None else NO_OBJECTIVE
            queued_s = (call.dispatched_ms - call.ready_ms) / 1000
            self._queue.labels(call.model or ANY_MODEL, objective).observe(queued_s)

    def decided(self, seconds: float) -> None:
        """The core took an event in."""
        self._decision.observe(seconds)

    def engine_lost(self) -> None:
        """An engine is gone that did not say that it leaves."""
        self._lost.inc()

    def rpc(self, method: str, code: str, problem: str, seconds: float) -> None:
        """An RPC is over."""
        self._rpcs.labels(method, code).observe(seconds)
        if problem:
            self._refused.labels(problem).inc()

    def took(self, what: str, seconds: float) -> None:
        self._store.labels(what).observe(seconds)

    def failed(self) -> None:
        self._troubles.inc()
