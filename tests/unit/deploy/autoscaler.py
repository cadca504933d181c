"""How Kubernetes' autoscaler would act on a ScaledObject, and a fleet of engines under load for it to act on.

The autoscaler is reckoned as its documentation has it ("Algorithm details", "Configurable scaling
behavior"): a tolerance of a tenth, replicas that are ready counted for a `Value`, and policies and windows
of each direction. The fleet is a fluid: calls come at a rate, take a time on an engine, and wait when all
engines are full.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

STEP_S: Final = 15
"""How often the autoscaler looks."""
TOLERANCE: Final = 0.1


@dataclass
class Fleet:
    """Engines of one model.

    Attributes:
        replicas: those that are asked for; the rest of them load their model.
        capacity: programs that an engine takes at once.
        takes_s: how long a program takes.
        starts_s: how long an engine takes until it serves.
    """

    replicas: int
    capacity: int = 64
    takes_s: float = 20.0
    starts_s: int = 240
    clock_s: int = 0
    running: float = 0.0
    queued: float = 0.0
    starting: list[int] = field(default_factory=list)

    @property
    def ready(self) -> int:
        """Engines that serve."""
        return self.replicas - len(self.starting)

    @property
    def waits_s(self) -> float:
        """How long the first call in the queue has waited, or will have."""
        return self.queued / max(self.ready * self.capacity / self.takes_s, 1e-9)

    def pass_time(self, calls_per_s: float) -> None:
        """One step, in which calls come at a rate."""
        self.clock_s += STEP_S
        self.starting = [due_s for due_s in self.starting if due_s > self.clock_s]
        self.queued += calls_per_s * STEP_S
        begun = min(self.queued, self.ready * self.capacity / self.takes_s * STEP_S)
        self.queued -= begun
        # Little's law: what begins in a second stays for as long as it takes.
        self.running = begun / STEP_S * self.takes_s

    def scale(self, replicas: int) -> None:
        """More engines start; of fewer, those go first that have not started."""
        more = replicas - self.replicas
        self.starting += [self.clock_s + self.starts_s] * more if more > 0 else []
        self.starting = self.starting[: max(0, len(self.starting) + min(0, more))]
        self.replicas = replicas


class Autoscaler:
    """What the horizontal autoscaler makes of a ScaledObject's specification."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._least, self._most = spec["minReplicaCount"], spec["maxReplicaCount"]
        self._behavior = spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        self._thresholds = [float(trigger["metadata"]["threshold"]) for trigger in spec["triggers"]]
        self._wished: deque[tuple[int, int]] = deque()
        self._changes: list[tuple[int, int]] = []

    def decide(self, fleet: Fleet) -> int:
        """How many engines there should be now."""
        waiting, busy = self._thresholds
        wish = max(_by_value(fleet, waiting), _by_average(fleet, busy))
        self._wished.append((fleet.clock_s, wish))
        wish = min(max(self._stabilized(wish, fleet), self._least), self._most)
        chosen = self._allowed(wish, fleet)
        if chosen != fleet.replicas:
            self._changes.append((fleet.clock_s, chosen - fleet.replicas))
        return chosen

    def _stabilized(self, wish: int, fleet: Fleet) -> int:
        down = self._within(fleet.clock_s - self._behavior["scaleDown"]["stabilizationWindowSeconds"])
        up = self._within(fleet.clock_s - self._behavior["scaleUp"]["stabilizationWindowSeconds"])
        if wish > fleet.replicas:
            return max(min(up), fleet.replicas)
        return min(max(down), fleet.replicas)

    def _within(self, since_s: int) -> list[int]:
        return [wish for at_s, wish in self._wished if at_s >= since_s]

    def _allowed(self, wish: int, fleet: Fleet) -> int:
        way = "scaleUp" if wish > fleet.replicas else "scaleDown"
        sign = 1 if way == "scaleUp" else -1
        (policy,) = self._behavior[way]["policies"]
        since_s = fleet.clock_s - policy["periodSeconds"]
        done = sum(change for at_s, change in self._changes if at_s > since_s and change * sign > 0)
        limit = fleet.replicas + sign * max(0, policy["value"] - abs(done))
        return int(min(wish, limit) if sign > 0 else max(wish, limit))


def _by_value(fleet: Fleet, threshold: float) -> int:
    ratio = fleet.waits_s / threshold
    return fleet.replicas if abs(1 - ratio) <= TOLERANCE else math.ceil(ratio * fleet.ready)


def _by_average(fleet: Fleet, threshold: float) -> int:
    ratio = fleet.running / (threshold * fleet.replicas)
    return fleet.replicas if abs(1 - ratio) <= TOLERANCE else math.ceil(fleet.running / threshold)
