"""A host's kubelet: starts containers, asks them how they are, starts them again, and ends them in order."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from deploy.rehearsal.manifests import Object
from deploy.rehearsal.network import Host, Network, cut, join, mend
from deploy.rehearsal.pod import Changed, Note, Pod, Runtime, kill, terminate
from deploy.rehearsal.probes import Probe

BACK_OFF_S: Final = (0.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
"""Before a container is started again: kubelets double from 10 s."""
THREADS: Final = 16
PROBES: Final = ("startupProbe", "readinessProbe", "livenessProbe")


class Kubelet:
    """Runs the pods of one host.

    Attributes:
        is_connected: it reaches the others.
        heard_at: when the cluster heard of it last, by the monotonic clock, while it is not connected.
    """

    def __init__(self, host: Host, network: Network, runtime: Runtime, changed: Changed, note: Note) -> None:
        self.host = host
        self.pods: dict[str, Pod] = {}
        self.is_connected = True
        self.heard_at = 0.0
        self._network = network
        self._runtime = runtime
        self._changed = changed
        self._note = note
        self._power = asyncio.Event()
        self._power.set()
        self._processes: dict[Pod, asyncio.subprocess.Process] = {}
        self._threads = ThreadPoolExecutor(THREADS, f"probe-{host.name}", partial(join, host.namespace))

    async def run(self, pod: Pod) -> None:
        """A pod's whole life on this host, which knows it already."""
        over = False
        try:
            while not over:
                await self._power.wait()
                if pod.is_deleted:
                    return
                pod.namespace, pod.address = await asyncio.to_thread(self._network.add_pod, self.host)
                self._changed()
                try:
                    over = await self._live(pod)
                finally:
                    self._report(pod, ready=False)
                    await asyncio.to_thread(self._network.remove, pod.namespace)
        finally:
            # Only now: a pod of the same name may come in its place at once.
            del self.pods[pod.name]
            pod.is_over = True
            self._changed()

    async def cut(self) -> None:
        """Cuts the host off from the others; its pods run on."""
        self.is_connected = False
        self.heard_at = time.monotonic()
        await asyncio.to_thread(cut, self.host)

    async def mend(self) -> None:
        """Joins it to the others again, which hear how its pods are."""
        await asyncio.to_thread(mend, self.host)
        self.is_connected = True
        for pod in self.pods.values():
            self._report(pod, ready=pod.is_ready)

    async def lose_power(self) -> None:
        """Ends everything on it at once; nobody hears a word of that."""
        await self.cut()
        self._power.clear()
        for process in list(self._processes.values()):
            kill(process)

    async def boot(self) -> None:
        """It comes back, and starts its pods."""
        for pod in self.pods.values():
            pod.is_ready = False
        await self.mend()
        self._power.set()

    def close(self) -> None:
        """Ends its threads."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _live(self, pod: Pod) -> bool:
        """Containers one after another; whether the pod is over, rather than its host without power."""
        lives = 0
        while True:
            await self._container(pod)
            if not self._power.is_set():
                return False
            if pod.is_deleted or pod.workload.kind == "Job":
                return True
            pod.restarts += 1
            if await self._deleted_within(pod, BACK_OFF_S[min(lives, len(BACK_OFF_S) - 1)]):
                return True
            lives += 1

    async def _container(self, pod: Pod) -> None:
        command = self._runtime.command(pod)
        self._note(f"{pod.name} on {self.host.name} starts at {pod.address}")
        pod.complaint = ""
        process = await self._runtime.start(pod, command, self._runtime.log_of(pod))
        self._processes[pod] = process
        try:
            await self._until_it_ends(pod, process)
        finally:
            kill(process)
            pod.exit_code = await process.wait()
            self._note(f"{pod.name} on {self.host.name} ended with {pod.exit_code} {pod.complaint}")
            del self._processes[pod]
            self._report(pod, ready=False)

    async def _until_it_ends(self, pod: Pod, process: asyncio.subprocess.Process) -> None:
        """Until it ends by itself, or is ended because it is ill or was told to go."""
        ended = asyncio.create_task(process.wait())
        ill = asyncio.create_task(self._watch(pod))
        told = asyncio.create_task(pod.deleted.wait())
        tasks = {ended, ill, told}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                return
            # What is told to go is asked no more how it is; its endpoints are gone already.
            await _cancelled(ill)
            await self._end(pod, process, ended)
        finally:
            for task in tasks:
                await _cancelled(task)

    async def _end(self, pod: Pod, process: asyncio.subprocess.Process, ended: asyncio.Task[int]) -> None:
        """preStop, SIGTERM, and SIGKILL when the grace period is over; all of it within that."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + pod.grace_s
        try:
            async with asyncio.timeout_at(deadline):
                await self._pre_stop(pod)
                terminate(process)
                await asyncio.shield(ended)
        except TimeoutError:
            pod.complaint = f"it did not end within its {pod.grace_s:g} s, and was killed"

    async def _pre_stop(self, pod: Pod) -> None:
        hook: Object = pod.container.get("lifecycle", {}).get("preStop", {})
        if "sleep" in hook:
            await asyncio.sleep(hook["sleep"]["seconds"])
        elif "exec" in hook:
            await self._runtime.run(pod, hook["exec"]["command"], pod.grace_s)

    async def _watch(self, pod: Pod) -> None:
        """Returns when the container is to be ended: it did not start in time, or lives no more."""
        startup, readiness, liveness = (Probe.of(pod.container, name) for name in PROBES)
        if startup is not None and not await self._started(pod, startup):
            return
        if readiness is None:
            self._report(pod, ready=True)
        async with asyncio.TaskGroup() as group:
            others = group.create_task(self._readiness(pod, readiness))
            await self._liveness(pod, liveness)
            others.cancel()

    async def _started(self, pod: Pod, probe: Probe) -> bool:
        await asyncio.sleep(probe.delay_s)
        for _ in range(probe.failures):
            wrong = await self._ask(pod, probe)
            if not wrong:
                return True
            await asyncio.sleep(probe.period_s)
        pod.complaint = f"it did not start: {wrong}"
        return False

    async def _readiness(self, pod: Pod, probe: Probe | None) -> None:
        if probe is None:
            return
        await asyncio.sleep(probe.delay_s)
        good = bad = 0
        while True:
            wrong = await self._ask(pod, probe)
            good, bad = (0, bad + 1) if wrong else (good + 1, 0)
            if good >= probe.successes:
                self._report(pod, ready=True)
            elif bad >= probe.failures:
                self._report(pod, ready=False, why=wrong)
            await asyncio.sleep(probe.period_s)

    async def _liveness(self, pod: Pod, probe: Probe | None) -> None:
        if probe is None:
            await asyncio.Event().wait()
            return
        await asyncio.sleep(probe.delay_s)
        bad = 0
        while bad < probe.failures:
            wrong = await self._ask(pod, probe)
            bad = bad + 1 if wrong else 0
            await asyncio.sleep(probe.period_s)
        pod.complaint = f"it lives no more: {wrong}"

    async def _ask(self, pod: Pod, probe: Probe) -> str:
        wrong = await self._answer(pod, probe)
        if wrong and wrong != pod.wrong:
            self._note(f"{pod.name} on {self.host.name}, asked how it is: {wrong.strip()}")
        pod.wrong = wrong
        return wrong

    async def _answer(self, pod: Pod, probe: Probe) -> str:
        async def run(command: list[str], within_s: float) -> str:
            code, said, complained = await self._runtime.run(pod, command, within_s)
            return "" if code == 0 else f"{command[0]}: {code} {said}{complained}"

        return await probe.once(pod.address, self._threads, run)

    def _report(self, pod: Pod, *, ready: bool, why: str = "") -> None:
        """Tells the cluster how a pod is, if that can be told."""
        if ready != pod.is_ready:
            self._note(f"{pod.name} on {self.host.name} is {'ready' if ready else 'not ready'} {why}")
        pod.is_ready = ready
        if self.is_connected and pod.is_reported_ready != ready:
            pod.is_reported_ready = ready
            self._changed()

    @staticmethod
    async def _deleted_within(pod: Pod, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await pod.deleted.wait()
        except TimeoutError:
            return False
        return True


async def _cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    await asyncio.wait({task})
