"""How busy an engine is, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.registry import Collector

from parrot_engine.programs.table import Programs
from parrot_engine.programs.tools import Tools


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
