"""A container of a rehearsal sees what its manifest gives it, and no more; its kubelet ends it in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from deploy.rehearsal.images import Images
from deploy.rehearsal.kubelet import Kubelet
from deploy.rehearsal.manifests import Manifests, Workload
from deploy.rehearsal.network import Network, NoNamespaces, check
from deploy.rehearsal.pod import Pod, Runtime
from tests.support.eventually import eventually
from tests.support.up import data_folder

pytestmark = pytest.mark.anyio
WITHIN_S = 60.0
SAYS_GOODBYE = 'trap "echo told; exit 0" TERM; echo up; while :; do sleep 0.1; done'
DEAF = 'trap "" TERM; echo up; while :; do sleep 0.1; done'


def workload(script: str = SAYS_GOODBYE, **pod: Any) -> Workload:
    container = {
        "name": "a",
        "image": "a:1",
        "command": ["sh", "-c", script],
        "env": [{"name": "WHO", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
        "envFrom": [{"configMapRef": {"name": "settings"}}],
        "securityContext": {"readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/a", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
        **pod.pop("container", {}),
    }
    spec = {
        "securityContext": {"runAsUser": 10001, "runAsGroup": 10001},
        "containers": [container],
        "volumes": [{"name": "config", "configMap": {"name": "files"}}, {"name": "tmp", "emptyDir": {}}],
        **pod,
    }
    template = {"metadata": {"labels": {"app": "a"}}, "spec": spec}
    return Workload({"kind": "Deployment", "metadata": {"name": "a"}, "spec": {"template": template}})


MAPS = [
    {"kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"SETTING": "of $(WHO)"}},
    {"kind": "ConfigMap", "metadata": {"name": "files"}, "data": {"a.conf": "text"}},
]


class Host:
    """A host with a kubelet, and what that noted."""

    def __init__(self, folder: Path, network: Network) -> None:
        (folder / "logs").mkdir()
        self.runtime = Runtime(Manifests(MAPS), Images.prepare(folder / "image"), folder)
        self.runtime.names_of("host").mkdir(parents=True)
        self.notes: list[str] = []
        self.kubelet = Kubelet(
            network.add_host("host"), network, self.runtime, lambda: None, self.notes.append
        )

    @asynccontextmanager
    async def running(self, made: Workload) -> AsyncIterator[Pod]:
        """A pod, from its start to after its end."""
        pod = Pod("a-1", made, 1, "host")
        self.kubelet.pods[pod.name] = pod
        life = asyncio.create_task(self.kubelet.run(pod))
        try:
            yield pod
        finally:
            pod.deleted.set()
            async with asyncio.timeout(WITHIN_S):
                await life

    def log(self, pod: Pod) -> str:
        path = self.runtime.log_of(pod)
        return path.read_text() if path.exists() else ""


@pytest.fixture
async def host() -> AsyncIterator[Host]:
    try:
        check()
    except NoNamespaces as error:
        pytest.skip(str(error))
    network = Network()
    try:
        with data_folder() as folder:
            made = Host(folder, network)
            yield made
            made.kubelet.close()
    finally:
        network.close()


async def test_a_container_has_its_user_its_files_and_no_rights(host: Host) -> None:
    async with host.running(workload()) as pod:
        await eventually(lambda: "up" in host.log(pod), WITHIN_S)

        async def says(script: str) -> str:
            _, said, complained = await host.runtime.run(pod, ["sh", "-c", script], WITHIN_S)
            return (said + complained).strip()

        assert await says("id -u; id -g; id -G") == "10001\n10001\n10001"
        assert "CapBnd:\t0000000000000000" in await says("cat /proc/self/status")
        assert await says("echo $WHO, $SETTING; cat /etc/a/a.conf") == "a-1, of $(WHO)\ntext"
        assert await says("echo x > /tmp/x && cat /tmp/x") == "x"
        for path in ("/x", "/etc/a/x", "/usr/x", "/run/x"):
            assert "Read-only file system" in await says(f"echo x > {path}")
        assert "No such file" in await says("ls /home /srv /opt")
        assert pod.address in await says("cat /proc/net/fib_trie")


async def test_one_that_is_told_to_go_gets_sigterm_after_its_hook(host: Host) -> None:
    hook = {"lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", "echo hook > /tmp/hook"]}}}}
    script = 'trap "cat /tmp/hook; echo told; exit 0" TERM; echo up; while :; do sleep 0.1; done'
    async with host.running(workload(script, container=hook)) as pod:
        await eventually(lambda: "up" in host.log(pod), WITHIN_S)
    assert host.log(pod) == "up\nhook\ntold\n"
    assert (pod.exit_code, pod.complaint, pod.restarts) == (0, "", 0)


async def test_one_that_does_not_go_is_killed_when_its_grace_is_over(host: Host) -> None:
    async with host.running(workload(DEAF, terminationGracePeriodSeconds=1)) as pod:
        await eventually(lambda: "up" in host.log(pod), WITHIN_S)
    assert pod.exit_code == -9
    assert "within its 1 s" in pod.complaint


async def test_one_that_is_ill_is_started_again(host: Host) -> None:
    probe = {"exec": {"command": ["test", "-e", "/tmp/well"]}, "periodSeconds": 0.05, "failureThreshold": 2}
    made = workload(container={"livenessProbe": probe | {"timeoutSeconds": WITHIN_S}})
    async with host.running(made) as pod:
        await eventually(lambda: pod.restarts == 1, WITHIN_S)
        await host.runtime.run(pod, ["touch", "/tmp/well"], WITHIN_S)
    assert any("lives no more" in note for note in host.notes)


async def test_a_host_without_power_ends_its_pods_at_once_and_starts_them_when_it_is_back(host: Host) -> None:
    async with host.running(workload()) as pod:
        await eventually(lambda: "up" in host.log(pod), WITHIN_S)
        before = pod.address
        await host.kubelet.lose_power()
        await eventually(lambda: pod.exit_code == -9, WITHIN_S)
        # Nobody has told the others.
        assert pod.is_reported_ready
        await host.kubelet.boot()
        await eventually(lambda: host.log(pod).count("up") == 2, WITHIN_S)
        assert pod.address != before
    assert host.log(pod) == "up\nup\ntold\n"


async def test_a_pod_is_over_when_its_name_is_free_and_not_before(host: Host) -> None:
    seen: list[tuple[bool, bool]] = []
    async with host.running(workload()) as pod:
        host.kubelet._changed = lambda: seen.append((pod.is_over, "a-1" in host.kubelet.pods))
        await eventually(lambda: "up" in host.log(pod), WITHIN_S)
    assert seen[-1] == (True, False)
    assert (True, True) not in seen
