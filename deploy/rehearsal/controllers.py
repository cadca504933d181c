"""What keeps as many pods as there are to be, and replaces them: Deployments, StatefulSets, Jobs."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Final, Protocol

from deploy.rehearsal.manifests import Workload
from deploy.rehearsal.pod import Pod

LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Of the names that Kubernetes makes."""


BACK_OFF_S: Final = 10.0
"""Before a job is tried again, at first."""


class JobFailed(Exception):
    """A job was tried as often as it may be."""


class Pods(Protocol):
    """The cluster, as a controller uses it."""

    def of(self, workload: Workload) -> list[Pod]:
        """A workload's pods; of a job's, those that ended too."""

    def create(self, name: str, workload: Workload, revision: int) -> Pod | None:
        """Starts a pod; None where no host has room for it."""

    async def changed(self) -> None:
        """Returns when something is otherwise than before."""


@dataclass(slots=True)
class Controller:
    """One workload.

    Attributes:
        revision: which pods are to be replaced: those of another.
    """

    workload: Workload
    pods: Pods
    revision: int = 1

    async def settle(self) -> None:
        """Returns when all its pods are there, of this revision, and ready; of a job, when one has succeeded.

        Raises:
            JobFailed: none does.
        """
        if self.workload.kind == "Job":
            await self._run_job()
            return
        take = self._deployment if self.workload.kind == "Deployment" else self._stateful_set
        while not take():
            await self.pods.changed()

    async def roll(self) -> None:
        """Replaces all its pods, as its strategy says."""
        self.revision += 1
        await self.settle()

    def _deployment(self) -> bool:
        """A step of a rolling update. Pods that are on their way out don't count, as in Kubernetes."""
        surge, unavailable = self.workload.bounds()
        wanted = self.workload.replicas
        there = [pod for pod in self.pods.of(self.workload) if not pod.is_deleted]
        new = [pod for pod in there if pod.revision == self.revision]
        old = sorted((pod for pod in there if pod.revision != self.revision), key=lambda pod: pod.is_endpoint)
        for _ in range(min(wanted - len(new), wanted + surge - len(there))):
            made = self.pods.create(f"{self.workload.name}-{_suffix()}", self.workload, self.revision)
            if made is None:
                break
            new.append(made)
        available = sum(pod.is_endpoint for pod in there)
        for pod in old:
            if pod.is_endpoint and available <= wanted - unavailable:
                break
            available -= pod.is_endpoint
            pod.deleted.set()
        return len(new) == wanted and all(pod.is_endpoint for pod in new) and not self._leaving()

    def _stateful_set(self) -> bool:
        """A step: what is missing is made; of the old ones, the last is replaced when all are ready."""
        there = {pod.name: pod for pod in self.pods.of(self.workload)}
        in_order = self.workload.item["spec"].get("podManagementPolicy", "OrderedReady") == "OrderedReady"
        for place in range(self.workload.replicas):
            name = f"{self.workload.name}-{place}"
            if name not in there:
                made = self.pods.create(name, self.workload, self.revision)
                if made is None:
                    return False
                there[name] = made
            if in_order and not there[name].is_endpoint:
                return False
        if not all(pod.is_endpoint for pod in there.values()):
            return False
        old = [pod for pod in there.values() if pod.revision != self.revision]
        if old:
            max(old, key=lambda pod: pod.name).deleted.set()
        return not old

    async def _run_job(self) -> None:
        """Pods one after another, until one succeeds."""
        if any(pod.exit_code == 0 for pod in self.pods.of(self.workload)):
            return
        wait_s = BACK_OFF_S
        for _ in range(self.workload.item["spec"].get("backoffLimit", 6) + 1):
            pod = self.pods.create(f"{self.workload.name}-{_suffix()}", self.workload, self.revision)
            while pod is not None and not pod.is_over:
                await self.pods.changed()
            if pod is not None and pod.exit_code == 0:
                return
            await asyncio.sleep(wait_s)
            wait_s *= 2
        raise JobFailed(f"job {self.workload.name} does not succeed")

    def _leaving(self) -> bool:
        return any(pod.is_deleted for pod in self.pods.of(self.workload))


def _suffix() -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(5))
