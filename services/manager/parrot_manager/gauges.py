"""How a manager is when it is asked, for Prometheus. Each look costs little, however much waits."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from parrot_manager import clock
from parrot_manager.core.model import EngineState
from parrot_manager.core.scheduling.backlog import Backlog
from parrot_manager.metrics import ANY_MODEL, OTHER

if TYPE_CHECKING:
    from parrot_manager.shell import Shell

ASKED_MODELS: Final = 32
"""So many models that no engine has ever served are told apart: clients name what they like."""
SILENT_HEARTBEATS: Final = 2.5


class Gauges(Collector):
    """The manager as it stands."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._served: set[str] = set()

    def collect(self) -> Iterator[Metric]:
        """Every gauge, and what the manager counts by itself."""
        yield self._calls()
        yield from self._queues()
        yield self._engines()
        shell = self._shell
        for name, text, value in (
            (
                "sessions",
                "Sessions in memory: the open ones, and for a while those that ended",
                self._sessions,
            ),
            ("shards", "Shards of sessions that are held here", len(shell.shards.held)),
            (
                "lease_valid",
                "Whether Postgres heard lately that this manager lives: 1 or 0",
                shell.keeper.valid,
            ),
            ("outbox_waiting", "Sessions of which a commit is under way", len(shell.unstored)),
            (
                "outbox_oldest_seconds",
                "How long the first of these commits takes already",
                shell.unstored.oldest_s,
            ),
            (
                "tenant_lead_tokens",
                "The most that a waiting tenant was served more than another that waits for the same",
                shell.machine.state.fleet.tenant_lead_tokens(),
            ),
        ):
            yield GaugeMetricFamily(f"parrot_manager_{name}", text, float(value))
        yield CounterMetricFamily(
            "parrot_manager_takeovers",
            "Shards that were taken over from a manager that was gone",
            shell.keeper.takeovers,
        )

    @property
    def _sessions(self) -> int:
        return len(self._shell.machine.state.sessions)

    def _calls(self) -> Metric:
        fleet = self._shell.machine.state.fleet
        queued, running = sum(found.calls for found in fleet.backlogs), fleet.running_calls()
        waiting = max(0, fleet.unfinished_calls() - queued - running)
        found = GaugeMetricFamily("parrot_manager_calls", "Calls that have not ended", labels=["state"])
        for state, count in (("waiting", waiting), ("queued", queued), ("running", running)):
            found.add_metric([state], count)
        return found

    def _queues(self) -> Iterator[Metric]:
        calls = GaugeMetricFamily(
            "parrot_manager_queued_calls", "Ready calls without a place", labels=["model"]
        )
        oldest = GaugeMetricFamily(
            "parrot_manager_queue_oldest_seconds",
            "How long the first of these waits already",
            labels=["model"],
        )
        now_ms = clock.now_ms()
        for model, (count, since_ms) in self._backlogs().items():
            calls.add_metric([model], count)
            oldest.add_metric([model], max(0, now_ms - since_ms) / 1000 if count else 0)
        yield calls
        yield oldest

    def _backlogs(self) -> dict[str, tuple[int, int]]:
        """How many wait, and since when, by the model's name as it is told: of each that was ever served."""
        fleet = self._shell.machine.state.fleet
        self._served.update(load.engine.model for load in fleet.engines.values())
        found: dict[str, tuple[int, int]] = dict.fromkeys((ANY_MODEL, *sorted(self._served)), (0, 0))
        strangers = 0
        for backlog in fleet.backlogs:
            name = backlog.model or ANY_MODEL
            if name not in found:
                strangers += 1
                name = name if strangers <= ASKED_MODELS else OTHER
            found[name] = _joined(found.get(name, (0, 0)), backlog)
        return found

    def _engines(self) -> Metric:
        shell = self._shell
        quiet_s = SILENT_HEARTBEATS * shell.settings.heartbeat_s
        counts: Counter[tuple[str, str]] = Counter()
        for model in sorted(self._served):
            counts.update(dict.fromkeys(((model, state) for state in ("serving", "draining", "silent")), 0))
        for load in shell.machine.state.engines.values():
            link = shell.links.get(load.engine.id)
            if link is None or time.monotonic() - link.heard_s > quiet_s:
                state = "silent"
            else:
                state = "serving" if load.engine.state is EngineState.READY else "draining"
            counts[load.engine.model, state] += 1
        found = GaugeMetricFamily(
            "parrot_manager_engines", "Engines that are attached here", labels=["model", "state"]
        )
        for labels, count in counts.items():
            found.add_metric(labels, count)
        return found


def _joined(known: tuple[int, int], backlog: Backlog) -> tuple[int, int]:
    count, since_ms = known
    return count + backlog.calls, min(since_ms, backlog.oldest_ms) if count else backlog.oldest_ms
