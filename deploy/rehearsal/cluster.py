"""The cluster as a whole: its hosts, who of them runs what, and what the others are told of that."""

from __future__ import annotations

import asyncio
import time
from asyncio import TaskGroup
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from deploy.rehearsal.controllers import Controller
from deploy.rehearsal.images import Images
from deploy.rehearsal.kubelet import Kubelet
from deploy.rehearsal.manifests import Manifests, Workload, host_of
from deploy.rehearsal.network import Host, Network
from deploy.rehearsal.pod import Pod, Runtime
from deploy.rehearsal.policies import Policies
from deploy.rehearsal.services import Services

HOSTS: Final = ("host-1", "host-2", "host-3", "database")
CLIENT: Final = "client"
GPU: Final = "nvidia.com/gpu"
GPUS: Final = 1
"""Of each host."""
MISSED_AFTER_S: Final = 40.0
"""How long a host may be silent before its pods are taken for unready: Kubernetes' default before 1.32, when
it became 50 s. Pods are moved off it 300 s later, which no rehearsal waits for."""
LOOK_S: Final = 1.0


class Cluster:
    """See `running_cluster`.

    Attributes:
        controllers: of each workload, by its name.
        kubelets: of each host, by its name.
        client: a machine outside, which reaches Services as a load balancer would.
        pods: all that were there, gone ones too.
        history: what happened, with the seconds of the day.
    """

    def __init__(self, manifests: Manifests, folder: Path, network: Network, group: TaskGroup) -> None:
        self._group = group
        self._tasks: set[asyncio.Task[None]] = set()
        self._network = network
        self._folder = folder
        self._version = 0
        self._change = asyncio.Event()
        self.runtime = Runtime(manifests, Images.prepare(folder / "image"), folder)
        self.services = Services(manifests.services(), Policies(manifests.of_kind("NetworkPolicy")))
        self.controllers = {one.name: Controller(one, self) for one in manifests.workloads()}
        self.kubelets: dict[str, Kubelet] = {}
        self.pods: list[Pod] = []
        self.history: list[tuple[float, str]] = []
        (folder / "logs").mkdir()
        self.client = self._add_machine(CLIENT)
        for name in HOSTS:
            host = self._add_machine(name)
            self.kubelets[name] = Kubelet(host, network, self.runtime, self._changed, self.tell)

    async def apply(self) -> None:
        """Starts everything at once, as `kubectl apply` does; returns when all is there and ready."""
        self._spawn(self._keep_telling())
        self._spawn(self._miss_hosts())
        async with TaskGroup() as group:
            for controller in self.controllers.values():
                group.create_task(controller.settle())

    async def settled(self) -> None:
        """Returns when all pods that are to be there are, and are ready."""
        for controller in self.controllers.values():
            await controller.settle()

    def of(self, workload: Workload) -> list[Pod]:
        """A workload's pods; of a job's, those that ended too."""
        return [
            pod
            for pod in self.pods
            if pod.workload is workload and (workload.kind == "Job" or not pod.is_over)
        ]

    def ready(self, name: str) -> list[Pod]:
        """The pods of a workload that Services send to."""
        return [pod for pod in self.of(self.controllers[name].workload) if pod.is_endpoint]

    def create(self, name: str, workload: Workload, revision: int) -> Pod | None:
        """Starts a pod on the host that suits it best; None where none has room."""
        host = self._host_for(name, workload)
        if host is None:
            return None
        pod = Pod(name, workload, revision, host.host.name)
        self.pods.append(pod)
        host.pods[name] = pod
        self._spawn(host.run(pod))
        return pod

    async def changed(self) -> None:
        """Returns when something is otherwise than before."""
        await self._change.wait()

    def tell(self, text: str) -> None:
        """Notes what happens."""
        self.history.append((time.time(), text))

    def close(self) -> None:
        """Ends everything at once."""
        for task in list(self._tasks):
            task.cancel()
        for kubelet in self.kubelets.values():
            kubelet.close()

    def _host_for(self, name: str, workload: Workload) -> Kubelet | None:
        """Where it was before, if it keeps a volume; else where the fewest of its kind are, or of all."""
        wanted = host_of(workload.pod)
        before = [pod.host for pod in self.pods if pod.name == name and workload.claims]
        names = before[-1:] or ([wanted] if wanted else [host for host in HOSTS if host != "database"])
        able = [kubelet for host in names if (kubelet := self.kubelets[host]).is_connected]
        free = [kubelet for kubelet in able if _gpus(kubelet.pods.values()) + _gpus_of(workload) <= GPUS]
        return min(free, key=lambda kubelet: _crowd(kubelet, workload), default=None)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add_machine(self, name: str) -> Host:
        names = self._folder / "names" / name
        names.mkdir(parents=True)
        (names / "hosts").write_text("127.0.0.1 localhost\n")
        return self._network.add_host(name)

    def _changed(self) -> None:
        self._version += 1
        self._change.set()
        self._change = asyncio.Event()

    async def _keep_telling(self) -> None:
        """Each host that can be reached learns what has changed, at once."""
        while True:
            seen, change = self._version, self._change
            there = [pod for kubelet in self.kubelets.values() for pod in kubelet.pods.values()]
            reached = [kubelet.host for kubelet in self.kubelets.values() if kubelet.is_connected]
            hosts = [*reached, self.client]
            told = (self.services.tell(host, self.runtime.names_of(host.name), there) for host in hosts)
            await asyncio.gather(*told)
            if seen == self._version:
                await change.wait()

    async def _miss_hosts(self) -> None:
        """Takes the pods of hosts that are silent for too long for unready."""
        while True:
            for kubelet in self.kubelets.values():
                if kubelet.is_connected or time.monotonic() < kubelet.heard_at + MISSED_AFTER_S:
                    continue
                for pod in kubelet.pods.values():
                    if pod.is_reported_ready:
                        pod.is_reported_ready = False
                        self._changed()
            await asyncio.sleep(LOOK_S)


@asynccontextmanager
async def running_cluster(manifests: Manifests, folder: Path) -> AsyncIterator[Cluster]:
    """A cluster whose machines stand; `apply` starts the pods.

    Raises:
        NetworkError: this machine lets nobody make networks.
    """
    network = await asyncio.to_thread(Network)
    try:
        async with TaskGroup() as group:
            cluster = Cluster(manifests, folder, network, group)
            try:
                yield cluster
            finally:
                cluster.close()
    finally:
        await asyncio.to_thread(network.close)


def _crowd(kubelet: Kubelet, workload: Workload) -> tuple[int, int, str]:
    staying = [pod for pod in kubelet.pods.values() if not pod.is_deleted]
    same = sum(pod.workload is workload for pod in staying)
    return same, len(staying), kubelet.host.name


def _gpus(pods: Iterable[Pod]) -> int:
    return sum(_gpus_of(pod.workload) for pod in pods)


def _gpus_of(workload: Workload) -> int:
    limits = workload.pod["containers"][0].get("resources", {}).get("limits", {})
    return int(limits.get(GPU, 0))
