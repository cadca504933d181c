"""Serves an engine's metrics to Prometheus: what its programs counted, and how busy it is now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import Metric, start_http_server
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from parrot_engine.programs.table import Programs
from parrot_engine.programs.tools import Tools
from parrot_runtime import errors
from parrot_runtime.errors import Fault


class Gauges(Collector):
    """How busy the engine is when it is asked."""

    def __init__(self, engine_id: str, programs: Programs, tools: Tools) -> None:
        self._engine_id = engine_id
        self._programs = programs
        self._tools = tools

    def collect(self) -> Iterator[Metric]:
        """Every gauge, as it stands."""
        programs, stats = self._programs, self._tools.backend.stats()
        yield self._info()
        found = GaugeMetricFamily("parrot_engine_programs_now", "Programs that are here", labels=["state"])
        for state in ("running", "waiting", "paused"):
            found.add_metric([state], getattr(programs, state))
        yield found
        for name, text, value in (
            ("held_tokens", "Tokens whose KV is held for contexts", stats.held_tokens),
            ("free_tokens", "Tokens for whose KV there is room", stats.free_tokens),
            ("kv_used_fraction", "Share of the KV memory in use", stats.kv_used_fraction),
            ("contexts", "Contexts, their KV held or not", stats.contexts),
            ("batch", "Outputs and fills in the batch", stats.running),
            ("step_seconds", "Time of a step that only decodes, lately", stats.step_ms / 1000),
        ):
            yield GaugeMetricFamily(f"parrot_engine_{name}", text, value=value)

    def _info(self) -> Metric:
        made = self._tools.provenance()
        names = ("engine_id", "model", "dtype", "backend", "backend_version", "attention", "version")
        found = {name: str(getattr(made, name)) for name in names}
        return InfoMetricFamily("parrot_engine", "What is served, with what", value=found)


@contextmanager
def serve_metrics(address: str, engine_id: str, programs: Programs, tools: Tools) -> Iterator[None]:
    """Serves them within the block; an empty address serves none.

    Raises:
        Fault: `invalid_request`, when the address can't be used.
    """
    if not address:
        yield
        return
    host, _, port = address.rpartition(":")
    tools.meters.registry.register(Gauges(engine_id, programs, tools))
    try:
        server, thread = start_http_server(int(port), host or "127.0.0.1", tools.meters.registry)
    except (ValueError, OSError, OverflowError) as error:
        raise Fault(
            errors.INVALID_REQUEST,
            f"metrics can't be served at {address!r} ({error}); give a free host:port",
            field="metrics_address",
        ) from None
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
