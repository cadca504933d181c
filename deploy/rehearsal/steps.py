"""What is done to the cluster while applications run on it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from deploy.rehearsal.cluster import Cluster

OUTAGE_S: Final = 20.0
"""Of a host: longer than a manager's lease, which is 3 s, and than an engine may be silent, which is 15 s."""
SETTLED_WITHIN_S: Final = 240.0
CUT_HOST: Final = "host-1"
KILLED_HOST: Final = "host-2"

Do = Callable[[Cluster], Awaitable[None]]


class StepFailed(Exception):
    """A step did not come to its end."""


@dataclass(frozen=True, slots=True)
class Step:
    """One disturbance."""

    name: str
    title: str
    do: Do


@dataclass(frozen=True, slots=True)
class Span:
    """When a step was carried out: seconds of the day."""

    step: Step
    started: float
    ended: float


def roll(workload: str) -> Do:
    """Replaces all pods of a workload."""

    async def do(cluster: Cluster) -> None:
        await cluster.controllers[workload].roll()

    return do


async def cut_host(cluster: Cluster) -> None:
    """Cuts a host off for a time: its pods run on and reach nobody."""
    kubelet = cluster.kubelets[CUT_HOST]
    await kubelet.cut()
    await asyncio.sleep(OUTAGE_S)
    await kubelet.mend()


async def kill_host(cluster: Cluster) -> None:
    """Takes a host's power away for a time; then it starts its pods anew."""
    kubelet = cluster.kubelets[KILLED_HOST]
    await kubelet.lose_power()
    await asyncio.sleep(OUTAGE_S)
    await kubelet.boot()


STEPS: Final = (
    Step("engines", "rolling update of the engines", roll("engine")),
    Step("managers", "rolling update of the managers", roll("manager")),
    Step("gateways", "rolling update of the gateways", roll("gateway")),
    Step("nats", "rolling update of NATS", roll("nats")),
    Step("cut", f"{CUT_HOST} cut off for {OUTAGE_S:g} s", cut_host),
    Step("kill", f"{KILLED_HOST} without power for {OUTAGE_S:g} s", kill_host),
)


async def carry_out(cluster: Cluster, step: Step) -> Span:
    """Does a step; returns once all pods are there and ready again.

    Raises:
        StepFailed: they don't get there.
    """
    cluster.tell(f"begins: {step.title}")
    started = time.time()
    try:
        async with asyncio.timeout(SETTLED_WITHIN_S):
            await step.do(cluster)
            await cluster.settled()
    except TimeoutError:
        raise StepFailed(f"{step.title}: not done after {SETTLED_WITHIN_S:g} s; {pods(cluster)}") from None
    cluster.tell(f"done: {step.title}")
    return Span(step, started, time.time())


def pods(cluster: Cluster) -> str:
    """How all pods are, in words."""
    there = [pod for kubelet in cluster.kubelets.values() for pod in kubelet.pods.values()]
    words = []
    for pod in sorted(there, key=lambda pod: pod.name):
        state = "going" if pod.is_deleted else "ready" if pod.is_endpoint else "not ready"
        words.append(f"{pod.name} on {pod.host}: {state}{f' ({pod.complaint})' if pod.complaint else ''}")
    return "; ".join(words)
