"""What an engine counts of its programs, for Prometheus."""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram

from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2

PHASES: Final = ("queue", "prefill", "decode", "static_prefill", "dynamic_prefill")
_SECONDS: Final = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)


class Meters:
    """Counters and histograms of one engine."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """`registry`: where they are served from; None: nowhere."""
        self.registry = registry or CollectorRegistry()
        self._programs = Counter(
            "parrot_engine_programs", "Programs that ended", ["outcome"], registry=self.registry
        )
        self._tokens = Counter(
            "parrot_engine_tokens",
            "Tokens of programs that are done; cached ones are among the prompt's",
            ["kind"],
            registry=self.registry,
        )
        self._seconds = Histogram(
            "parrot_engine_phase_seconds",
            "Where the time of programs that are done went",
            ["phase"],
            buckets=_SECONDS,
            registry=self.registry,
        )

    def count(self, event: engine_pb2.AttachRequest) -> None:
        """Takes in what is reported to the manager; what is no end counts nothing."""
        kind = event.WhichOneof("event")
        if kind == "done":
            self._programs.labels("done").inc()
            self._count_done(event.done.usage, event.done.timings)
        elif kind == "failed":
            self._programs.labels(event.failed.failure.type).inc()
        elif kind == "cancelled":
            self._programs.labels("cancelled").inc()

    def _count_done(self, usage: common_pb2.Usage, timings: common_pb2.Timings) -> None:
        for kind, count in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("shared", usage.shared_tokens),
            ("output", usage.output_tokens),
            ("static_prefill", timings.static_prefill_tokens),
            ("dynamic_prefill", timings.dynamic_prefill_tokens),
            ("streamed", timings.streamed_tokens),
        ):
            self._tokens.labels(kind).inc(count)
        for phase in PHASES:
            self._seconds.labels(phase).observe(getattr(timings, f"{phase}_ms") / 1000)
