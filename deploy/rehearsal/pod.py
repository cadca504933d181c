"""A pod: what is known of it, its volumes, and its container's process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from asyncio import create_subprocess_exec
from asyncio.subprocess import Process
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from deploy.rehearsal.images import NAMES, Images, bind, pods_folder
from deploy.rehearsal.manifests import NAMESPACE, Manifests, NotPlayed, Object, Workload, expanded
from deploy.rehearsal.network import NETNS
from deploy.rehearsal.sandbox import Mount, Plan

SANDBOX: Final = Path(__file__).with_name("sandbox.py")
DEFAULT_GRACE_S: Final = 30


@dataclass(eq=False)
class Pod:
    """One pod, over all lives of its container.

    Attributes:
        revision: which roll-out of its workload it belongs to.
        address: its own; empty before it has a network.
        is_ready: as its kubelet sees it.
        is_reported_ready: as the cluster knows it, which does not hear of it while its host is cut off.
        is_deleted: it was told to go.
        is_over: it is gone, or, of a job, has ended.
        exit_code: of its last container.
        complaint: why its container was ended, if it was.
        wrong: what was wrong when it was asked last.
    """

    name: str
    workload: Workload
    revision: int
    host: str
    namespace: str = ""
    address: str = ""
    is_ready: bool = False
    is_reported_ready: bool = False
    is_over: bool = False
    restarts: int = 0
    exit_code: int | None = None
    complaint: str = ""
    wrong: str = ""
    deleted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_deleted(self) -> bool:
        """Whether it was told to go."""
        return self.deleted.is_set()

    @property
    def is_endpoint(self) -> bool:
        """Whether Services send new connections to it."""
        return self.is_reported_ready and not self.is_deleted

    @property
    def container(self) -> Object:
        """Its one container."""
        found: Object = self.workload.pod["containers"][0]
        return found

    @property
    def grace_s(self) -> float:
        """How long it may take to go."""
        return float(self.workload.pod.get("terminationGracePeriodSeconds", DEFAULT_GRACE_S))

    def fields(self) -> dict[str, str]:
        """What its environment may refer to."""
        return {
            "metadata.name": self.name,
            "metadata.namespace": NAMESPACE,
            "status.podIP": self.address,
            "spec.nodeName": self.host,
        }


@dataclass(frozen=True, slots=True)
class Runtime:
    """Starts processes of pods.

    Attributes:
        folder: volumes, names and logs.
    """

    manifests: Manifests
    images: Images
    folder: Path

    def log_of(self, pod: Pod) -> Path:
        """What its containers wrote, over all their lives."""
        return self.folder / "logs" / f"{pod.name}.log"

    def names_of(self, host: str) -> Path:
        """The folder with the names that pods of a host know."""
        return self.folder / "names" / host

    def command(self, pod: Pod) -> list[str]:
        """What the container runs."""
        container = pod.container
        command = container.get("command") or self.images.entry(container["image"])
        values = self._environment(pod)
        return [expanded(part, values) for part in [*command, *container.get("args", [])]]

    async def start(self, pod: Pod, command: list[str], log: Path | None = None) -> Process:
        """Starts a process in a pod's container: its own, or one more.

        Args:
            log: where it writes; without one, its output is the process's to read.
        """
        plan = json.dumps(self._plan(pod, command))
        starter = [sys.executable, "-I", "-S", str(SANDBOX), str(os.getpid()), plan]
        if log is None:
            pipe = asyncio.subprocess.PIPE
            return await create_subprocess_exec(*starter, stdout=pipe, stderr=pipe, process_group=0)
        with log.open("ab") as stream:
            return await create_subprocess_exec(*starter, stdout=stream, stderr=stream, process_group=0)

    async def run(self, pod: Pod, command: list[str], within_s: float) -> tuple[int, str, str]:
        """Runs a command in a container to its end; its exit code, its output and its complaints."""
        process = await self.start(pod, command)
        try:
            async with asyncio.timeout(within_s):
                said, complained = await process.communicate()
        except TimeoutError:
            return -1, "", f"{command[0]} took longer than {within_s:g} s"
        finally:
            kill(process)
        return process.returncode or 0, said.decode(errors="replace"), complained.decode(errors="replace")

    def _environment(self, pod: Pod) -> dict[str, str]:
        image = {**self.images.environment(pod.container["image"]), "HOSTNAME": pod.name}
        return self.manifests.environment(pod.container, image, pod.fields())

    def _plan(self, pod: Pod, command: list[str]) -> Plan:
        pod_wide, own = pod.workload.pod.get("securityContext", {}), pod.container.get("securityContext", {})
        uid = own.get("runAsUser", pod_wide.get("runAsUser", 0))
        gid = own.get("runAsGroup", pod_wide.get("runAsGroup", 0))
        root = self.folder / "roots" / pod.name
        root.mkdir(parents=True, exist_ok=True)
        names = bind(self.names_of(pod.host), NAMES)
        return Plan(
            network=str(NETNS / pod.namespace),
            root=str(root),
            mounts=[*self.images.mounts(), names, *self._volumes(pod, uid, gid)],
            read_only=bool(own.get("readOnlyRootFilesystem")),
            uid=uid,
            gid=gid,
            environment=self._environment(pod),
            command=command,
        )

    def _volumes(self, pod: Pod, uid: int, gid: int) -> list[Mount]:
        sources = {one["name"]: one for one in pod.workload.pod.get("volumes", [])}
        mounts = sorted(pod.container.get("volumeMounts", []), key=lambda mount: str(mount["mountPath"]))
        return [
            bind(
                self._volume(pod, mount["name"], sources.get(mount["name"], {}), uid, gid),
                mount["mountPath"],
                writable=not mount.get("readOnly"),
            )
            for mount in mounts
        ]

    def _volume(self, pod: Pod, name: str, about: Object, uid: int, gid: int) -> Path:
        folder = self.folder / "volumes" / pod.name
        if "emptyDir" in about or name in pod.workload.claims:
            return pods_folder(folder, name, uid, gid)
        for key, kind, naming in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
            if key in about:
                path = pods_folder(folder, name, uid, gid)
                for file, text in self.manifests.files(kind, about[key][naming]).items():
                    (path / file).write_text(text)
                return path
        raise NotPlayed(f"volume {name} of pod {pod.name} is of a kind that is not played: {sorted(about)}")


def kill(process: Process) -> None:
    """Kills a container's process, and what it started; nothing, where it has ended."""
    if process.returncode is None:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return


def terminate(process: Process) -> None:
    """Tells a container's first process, and no other, to end."""
    if process.returncode is None:
        process.terminate()


Changed = Callable[[], None]
"""To be called when what is known of a pod has changed."""

Note = Callable[[str], None]
"""To be told what happens, in words."""
