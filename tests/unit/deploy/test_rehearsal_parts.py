"""What a rehearsal takes from the manifests, and what it makes of what it sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from deploy.rehearsal.__main__ import RENDERED
from deploy.rehearsal.applications import Reader, Wrong
from deploy.rehearsal.images import ROOT, Images
from deploy.rehearsal.kubelet import PROBES
from deploy.rehearsal.load import Record
from deploy.rehearsal.manifests import Manifests, NotPlayed, Workload, expanded, image_environment
from deploy.rehearsal.pod import Pod
from deploy.rehearsal.policies import Policies
from deploy.rehearsal.probes import Probe
from deploy.rehearsal.report import Figures, quantile, step_reports
from deploy.rehearsal.services import Services
from deploy.rehearsal.steps import STEPS, Span

from parrot.sse import Event

MANIFESTS = Manifests.read(RENDERED)
each = pytest.mark.parametrize("workload", [pytest.param(one, id=one.name) for one in MANIFESTS.workloads()])


@each
def test_every_pod_of_the_overlay_can_be_played(workload: Workload, tmp_path: Path) -> None:
    images = Images.prepare(tmp_path / "image")
    container = workload.pod["containers"][0]
    assert container.get("command") or images.entry(container["image"])
    for name in PROBES:
        Probe.of(container, name)
    fields = {"metadata.name": "a-1", "status.podIP": "10.70.1.2"}
    found = MANIFESTS.environment(container, images.environment(container["image"]), fields)
    assert not any("$(" in value for value in found.values())


def test_the_rehearsal_has_as_many_pods_as_it_says() -> None:
    numbers = {one.name: one.replicas for one in MANIFESTS.workloads() if one.kind != "Job"}
    assert numbers == {"engine": 3, "gateway": 2, "manager": 2, "nats": 3, "postgres": 1}


def test_an_environment_is_the_images_then_the_manifests_with_what_it_refers_to() -> None:
    (manager,) = (one for one in MANIFESTS.workloads() if one.name == "manager")
    fields = {"metadata.name": "manager-1", "status.podIP": "10.70.1.2"}
    found = MANIFESTS.environment(manager.pod["containers"][0], {"HOME": "/tmp"}, fields)
    assert found["HOME"] == "/tmp"
    assert found["PARROT_MANAGER_ID"] == "manager-1"
    assert found["PARROT_ADVERTISE"] == "10.70.1.2:7400"
    assert found["PARROT_POSTGRES_URL"].startswith("postgresql://parrot:")


def test_references_are_replaced_and_unknown_ones_stay() -> None:
    assert expanded("$(A)-$(B)", {"A": "1"}) == "1-$(B)"


def test_an_images_environment_is_its_last_stages() -> None:
    found = image_environment(ROOT / "docker" / "frontend.Dockerfile")
    assert found["PARROT_KEYS"] == "true"
    assert found["HOME"] == "/tmp"
    assert "PATH" not in found


def test_what_can_not_be_played_is_said_with_its_place(tmp_path: Path) -> None:
    item = json.loads(json.dumps(MANIFESTS.of_kind("Deployment")[0]))
    item["spec"]["template"]["spec"]["initContainers"] = [{"name": "b"}]
    path = tmp_path / "some.yaml"
    path.write_text(json.dumps(item))
    with pytest.raises(NotPlayed, match=rf"Deployment {item['metadata']['name']}: initContainers"):
        Manifests.read(path)


def test_a_probe_over_tls_or_grpc_is_refused() -> None:
    container = {"name": "c", "readinessProbe": {"grpc": {"port": 1}}}
    with pytest.raises(NotPlayed, match="container c: readinessProbe"):
        Probe.of(container, "readinessProbe")


def test_a_service_sends_to_ready_pods_and_to_none_that_was_told_to_go() -> None:
    (gateway,) = (one for one in MANIFESTS.workloads() if one.name == "gateway")
    (service,) = (one for one in MANIFESTS.services() if one.name == "gateway")
    pods = [
        Pod(
            f"gateway-{number}",
            gateway,
            1,
            "host",
            address=f"10.70.1.{number}",
            is_reported_ready=number != 2,
        )
        for number in range(1, 5)
    ]
    pods[2].deleted.set()
    services = Services([service], Policies([]))
    assert [pod.name for pod in services.endpoints(service, pods)] == ["gateway-1", "gateway-4"]
    assert services._rules(pods).count("--to-destination") == 2
    assert "REJECT" not in services._rules(pods)
    assert "REJECT" in services._rules(pods[1:3])


def delta(offset: int, text: str) -> Event:
    return Event("delta", json.dumps({"offset": offset, "text": text}), "i")


@pytest.mark.parametrize("offset", [1, 3])
def test_a_reader_notices_bytes_that_are_left_out_or_come_twice(offset: int) -> None:
    reader = Reader(httpx.AsyncClient(), "/")
    assert not reader._take(delta(0, "ab"))
    with pytest.raises(Wrong, match=f"from byte {offset} came after 2 bytes"):
        reader._take(delta(offset, "c"))


def test_a_reader_notices_an_end_that_comes_too_early() -> None:
    reader = Reader(httpx.AsyncClient(), "/")
    reader._take(delta(0, "é"))
    with pytest.raises(Wrong, match="after 2 of 3 bytes"):
        reader._take(Event("done", json.dumps({"state": "ready", "size_bytes": 3}), "i"))
    assert reader._take(Event("done", json.dumps({"state": "ready", "size_bytes": 2}), "i"))


def record(started: float, ended: float, error: str = "") -> Record:
    return Record("chain", 1, started, ended, None, 0, error)


def test_quantiles_are_of_the_values_themselves() -> None:
    values = [float(number) for number in range(1, 101)]
    assert quantile(values, 0.5) == 50
    assert quantile(values, 0.99) == 99
    assert quantile([7.0], 0.99) == 7
    assert quantile([], 0.5) is None


def test_a_run_counts_for_the_step_that_touched_it() -> None:
    spans = [Span(STEPS[0], 10, 20), Span(STEPS[1], 30, 40)]
    records = [
        record(1, 9),
        record(9, 11, "gone"),
        record(12, 13),
        record(19, 25),
        record(21, 29),
        record(39, 45),
    ]
    first, second = step_reports(spans, records)
    assert (first.before.runs, first.during.runs, first.after.runs) == (1, 3, 1)
    assert (first.during.lost, second.during.lost) == (1, 0)
    assert (second.before.runs, second.during.runs, second.after.runs) == (1, 1, 0)


def test_figures_of_no_runs_say_so() -> None:
    found: Any = Figures.of([])
    assert (found.runs, found.p50_s, found.longest_s) == (0, None, None)


def test_every_policy_of_the_overlay_can_be_played_and_isolates_each_pod_from_others() -> None:
    pods = [
        Pod(f"{one.name}-1", one, 1, "host", address=f"10.70.1.{number}")
        for number, one in enumerate(MANIFESTS.workloads())
    ]
    rules = Policies(MANIFESTS.of_kind("NetworkPolicy")).rules("host", pods).splitlines()
    for pod in pods:
        assert f"-A INGRESS -d {pod.address}/32 -j DROP" in rules
        assert f"-A EGRESS -s {pod.address}/32 -j DROP" in rules
    address = {pod.workload.name: pod.address for pod in pods}
    way = f"-s {address['gateway']}/32 -d {address['manager']}/32 -p tcp --dport 7400 -j RETURN"
    assert f"-A EGRESS {way}" in rules
    assert not any(address["postgres"] in rule and address["gateway"] in rule for rule in rules)
