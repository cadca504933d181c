"""Pods are replaced as the manifests' strategies say, as Kubernetes would."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from deploy.rehearsal import controllers
from deploy.rehearsal.controllers import Controller, JobFailed
from deploy.rehearsal.manifests import Workload
from deploy.rehearsal.pod import Pod

pytestmark = pytest.mark.anyio


def workload(kind: str, replicas: int, **spec: Any) -> Workload:
    template = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [{"name": "a", "image": "a:1"}]}}
    return Workload(
        {
            "kind": kind,
            "metadata": {"name": "a"},
            "spec": {"replicas": replicas, "template": template, **spec},
        }
    )


class Site:
    """Pods that are ready, or gone, or over, when the test says so; keeps what was there at each moment."""

    def __init__(self, room: int = 100) -> None:
        self.pods: list[Pod] = []
        self.made: list[str] = []
        self._room = room
        self._change = asyncio.Event()

    def of(self, workload: Workload) -> list[Pod]:
        return [pod for pod in self.pods if workload.kind == "Job" or not pod.is_over]

    def create(self, name: str, workload: Workload, revision: int) -> Pod | None:
        if sum(not pod.is_over for pod in self.pods) >= self._room:
            return None
        pod = Pod(name, workload, revision, "host")
        self.pods.append(pod)
        self.made.append(name)
        return pod

    async def changed(self) -> None:
        await self._change.wait()

    def there(self) -> list[Pod]:
        return [pod for pod in self.pods if not pod.is_over]

    def staying(self) -> list[Pod]:
        return [pod for pod in self.there() if not pod.is_deleted]

    def ready(self) -> list[Pod]:
        return [pod for pod in self.there() if pod.is_endpoint]

    async def say(self, change: Callable[[Pod], None], pod: Pod) -> None:
        change(pod)
        self._change.set()
        self._change = asyncio.Event()
        for _ in range(5):
            await asyncio.sleep(0)  # gives the controller its turns

    async def play(self, check: Callable[[], None]) -> None:
        """One pod after another gets ready, or ends when it was told to, until nothing is left to happen."""
        while True:
            check()
            going = next((pod for pod in self.there() if pod.is_deleted), None)
            coming = next((pod for pod in self.there() if not pod.is_reported_ready), None)
            if coming is not None and not coming.is_deleted:
                await self.say(_gets_ready, coming)
            elif going is not None:
                await self.say(_ends, going)
            else:
                return


def _gets_ready(pod: Pod) -> None:
    pod.is_reported_ready = True


def _ends(pod: Pod) -> None:
    pod.is_over = True


async def _settled(site: Site, controller: Controller, check: Callable[[], None]) -> None:
    for begin in (controller.settle, controller.roll):
        task = asyncio.create_task(begin())
        await asyncio.sleep(0)
        await site.play(check if begin == controller.roll else lambda: None)
        async with asyncio.timeout(5):
            await task


@pytest.mark.parametrize(("surge", "unavailable"), [(1, 0), (0, 1), (2, 1)])
async def test_a_roll_keeps_within_the_bounds_of_its_strategy(surge: int, unavailable: int) -> None:
    strategy = {"rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    site = Site()
    controller = Controller(workload("Deployment", 3, strategy=strategy), site)

    def check() -> None:
        assert len(site.staying()) <= 3 + surge
        assert len(site.ready()) >= 3 - unavailable

    await _settled(site, controller, check)
    assert [pod.revision for pod in site.there()] == [2, 2, 2]
    assert len(site.made) == 6


async def test_a_pod_without_room_waits_until_the_one_before_it_is_gone() -> None:
    strategy = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    site = Site(room=3)
    controller = Controller(workload("Deployment", 3, strategy=strategy), site)
    await _settled(site, controller, lambda: None)
    assert [pod.revision for pod in site.there()] == [2, 2, 2]


async def test_a_stateful_set_replaces_its_last_pod_first_and_one_at_a_time() -> None:
    site = Site()
    controller = Controller(workload("StatefulSet", 3, podManagementPolicy="Parallel"), site)

    def check() -> None:
        assert len(site.ready()) >= 2

    await _settled(site, controller, check)
    assert site.made == ["a-0", "a-1", "a-2", "a-2", "a-1", "a-0"]


async def test_a_stateful_set_starts_in_order_unless_it_says_otherwise() -> None:
    site = Site()
    controller = Controller(workload("StatefulSet", 3), site)

    def check() -> None:
        assert len(site.there()) <= len(site.ready()) + 1

    task = asyncio.create_task(controller.settle())
    await asyncio.sleep(0)
    await site.play(check)
    await task


async def test_a_job_is_tried_until_it_succeeds_and_no_more_often_than_it_may_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controllers, "BACK_OFF_S", 0.0)
    codes = [1, 1, 0]

    class Failing(Site):
        def create(self, name: str, workload: Workload, revision: int) -> Pod | None:
            pod = super().create(name, workload, revision)
            assert pod is not None
            pod.is_over, pod.exit_code = True, codes[len(self.made) - 1]
            return pod

    site = Failing()
    await Controller(workload("Job", 1, backoffLimit=2), site).settle()
    assert len(site.made) == 3
    codes[:] = [1, 1, 1]
    with pytest.raises(JobFailed, match="job a"):
        await Controller(workload("Job", 1, backoffLimit=2), Failing()).settle()


def test_shares_are_rounded_as_kubernetes_rounds_them() -> None:
    assert workload("Deployment", 3).bounds() == (1, 0)
    assert workload("Deployment", 8).bounds() == (2, 2)
