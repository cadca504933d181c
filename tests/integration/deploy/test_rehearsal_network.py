"""The networks of a rehearsal: who reaches whom, and what a cut does."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from deploy.rehearsal import network
from deploy.rehearsal.manifests import Service, Workload
from deploy.rehearsal.network import Network, NoNamespaces, check, cut, join, load_rules, mend
from deploy.rehearsal.pod import Pod
from deploy.rehearsal.policies import Policies
from deploy.rehearsal.services import Services

PORT = 80
WAIT_S = 3.0
"""After so long nobody answers, on one machine."""


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    try:
        check()
    except NoNamespaces as error:
        pytest.skip(str(error))
    made = Network()
    yield made
    made.close()


class Machine:
    """Does things in a namespace, in a thread that lives there."""

    def __init__(self, namespace: str) -> None:
        self._thread = ThreadPoolExecutor(1, initializer=partial(join, namespace))

    def listen(self) -> socket.socket:
        """A listener at the port, at every address of the namespace."""
        return self._thread.submit(socket.create_server, ("", PORT)).result()

    def reaches(self, address: str, port: int = PORT) -> bool | str:
        """Whether somebody takes a connection; else why not."""

        def connect() -> bool | str:
            try:
                network.connected(address, port, WAIT_S).close()
            except OSError as error:
                return type(error).__name__
            return True

        return self._thread.submit(connect).result()

    def close(self) -> None:
        self._thread.shutdown()


def workload(name: str) -> Workload:
    container = {"name": name, "ports": [{"name": "http", "containerPort": PORT}]}
    template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": [container]}}
    return Workload({"kind": "Deployment", "metadata": {"name": name}, "spec": {"template": template}})


class Site:
    """Two hosts with a pod each that listens, and a client."""

    def __init__(self, net: Network, tag: str) -> None:
        self.hosts = [net.add_host(f"{tag}{number}") for number in range(3)]
        self.client = Machine(self.hosts[2].namespace)
        self.pods: list[Pod] = []
        self.machines: list[Machine] = []
        self.listeners: list[socket.socket] = []
        for place, host in enumerate(self.hosts[:2]):
            pod = Pod(f"a-{place}", workload("a"), 1, host.name, is_reported_ready=True)
            pod.namespace, pod.address = net.add_pod(host)
            self.pods.append(pod)
            self.machines.append(Machine(pod.namespace))
            self.listeners.append(self.machines[-1].listen())

    def tell(self, services: Services) -> None:
        for host in self.hosts:
            load_rules(host, services._rules(self.pods) + services._policies.rules(host.name, self.pods))

    def close(self) -> None:
        for listener in self.listeners:
            listener.close()
        for machine in [*self.machines, self.client]:
            machine.close()


@pytest.fixture
def site(net: Network, request: pytest.FixtureRequest) -> Iterator[Site]:
    made = Site(net, f"h{abs(hash(request.node.name)) % 10_000}-")
    yield made
    made.close()


def services(policies: list[dict[str, Any]] | None = None) -> Services:
    port = {"port": 8, "targetPort": "http"}
    return Services([Service("a", {"app": "a"}, False, False, [port])], Policies(policies or []))


def accepted(listener: socket.socket) -> int:
    """How many connections have come."""
    listener.setblocking(False)
    found = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return found
        found += 1


def test_pods_and_the_client_reach_pods_of_every_host(site: Site) -> None:
    site.tell(services())
    for machine in [site.client, *site.machines]:
        for pod in site.pods:
            assert machine.reaches(pod.address) is True


def test_a_services_address_leads_to_all_its_endpoints_and_to_no_other(site: Site) -> None:
    found = services()
    site.tell(found)
    address = found.addresses["a"]
    assert all(site.client.reaches(address, 8) is True for _ in range(40))
    counts = [accepted(listener) for listener in site.listeners]
    assert sum(counts) == 40
    assert min(counts) > 5
    site.pods[0].is_reported_ready = False
    site.tell(found)
    assert all(site.client.reaches(address, 8) is True for _ in range(10))
    assert accepted(site.listeners[0]) == 0


def test_a_service_without_endpoints_refuses(site: Site) -> None:
    found = services()
    for pod in site.pods:
        pod.deleted.set()
    site.tell(found)
    assert site.client.reaches(found.addresses["a"], 8) == "ConnectionRefusedError"
    assert site.machines[0].reaches(found.addresses["a"], 8) == "ConnectionRefusedError"


def test_a_host_that_is_cut_off_is_silent_to_others_and_itself_as_before(net: Network, site: Site) -> None:
    site.tell(services())
    space, _ = net.add_pod(site.hosts[0])
    neighbour = Machine(space)
    cut(site.hosts[0])
    assert site.client.reaches(site.pods[0].address) == "TimeoutError"
    assert site.machines[0].reaches(site.pods[1].address) == "TimeoutError"
    assert neighbour.reaches(site.pods[0].address) is True
    mend(site.hosts[0])
    assert site.client.reaches(site.pods[0].address) is True
    neighbour.close()


def test_policies_let_through_what_they_name_and_drop_the_rest(site: Site) -> None:
    a = {"matchLabels": {"app": "a"}}
    deny = {"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}}
    among = {
        "spec": {
            "podSelector": a,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": a}], "ports": [{"port": PORT}]}],
            "egress": [{"to": [{"podSelector": a}], "ports": [{"port": PORT}]}],
        }
    }
    site.tell(services([deny, among]))
    assert site.machines[0].reaches(site.pods[1].address) is True
    assert site.client.reaches(site.pods[1].address) == "TimeoutError"
    site.tell(services([deny]))
    assert site.machines[0].reaches(site.pods[1].address) == "TimeoutError"


def test_what_was_made_is_removed(net: Network) -> None:
    before = set(network.NETNS.iterdir())
    made = Network()
    made.add_pod(made.add_host("a"))
    assert set(network.NETNS.iterdir()) > before
    made.close()
    assert set(network.NETNS.iterdir()) == before
