"""What every host knows of pods: the endpoints behind each Service, their names, and who may reach whom."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Final

from deploy.rehearsal.manifests import NAMESPACE, Service
from deploy.rehearsal.network import REFUSED, SERVICES, Host, load_rules, rules_of
from deploy.rehearsal.pod import Pod
from deploy.rehearsal.policies import Policies
from deploy.rehearsal.probes import port_of

FIRST_ADDRESS: Final = 10
DOMAIN: Final = f"{NAMESPACE}.svc.cluster.local"


class Services:
    """Tells hosts who is behind which Service."""

    def __init__(self, services: Iterable[Service], policies: Policies) -> None:
        self._policies = policies
        numbers = count(FIRST_ADDRESS)
        self._services = list(services)
        with_address = (one.name for one in self._services if not one.is_headless)
        self.addresses = {name: f"10.96.0.{next(numbers)}" for name in with_address}
        self._told: dict[str, tuple[str, str]] = {}

    async def tell(self, host: Host, folder: Path, pods: Iterable[Pod]) -> None:
        """Brings a host's rules, and the names in `folder`, up to date."""
        known = list(pods)
        rules = self._rules(known) + self._policies.rules(host.name, known)
        names = self._names(known)
        if self._told.get(host.name) == (rules, names):
            return
        # Whoever reads the names meanwhile finds the old ones or the new ones, whole.
        made = folder / "hosts.new"
        made.write_text(names)
        made.rename(folder / "hosts")
        await asyncio.to_thread(load_rules, host, rules)
        self._told[host.name] = rules, names

    def endpoints(self, service: Service, pods: Iterable[Pod]) -> list[Pod]:
        """The pods behind a Service, in the order of their names."""
        found = [pod for pod in pods if service.selects(pod.workload.labels) and pod.address]
        ready = [pod for pod in found if pod.is_endpoint or (service.names_unready and not pod.is_over)]
        return sorted(ready, key=lambda pod: pod.name)

    def _rules(self, pods: list[Pod]) -> str:
        turned: list[str] = []
        refused: list[str] = []
        for service in self._services:
            address = self.addresses.get(service.name)
            endpoints = self.endpoints(service, pods)
            for port in service.ports if address else []:
                match = f"-d {address}/32 -p tcp --dport {port['port']}"
                for place, pod in enumerate(endpoints):
                    left = len(endpoints) - place
                    chance = f"-m statistic --mode random --probability {1 / left:.5f} " if left > 1 else ""
                    to = f"{pod.address}:{port_of(pod.container, port['targetPort'])}"
                    turned.append(f"-A {SERVICES} {match} {chance}-j DNAT --to-destination {to}")
                if not endpoints:
                    refused.append(f"-A {REFUSED} {match} -j REJECT --reject-with tcp-reset")
        return rules_of(turned, "nat", [SERVICES]) + rules_of(refused, "filter", [REFUSED])

    def _names(self, pods: list[Pod]) -> str:
        lines = ["127.0.0.1 localhost"]
        for service in self._services:
            address = self.addresses.get(service.name)
            endpoints = self.endpoints(service, pods)
            found = [address] if address else [pod.address for pod in endpoints]
            lines += [_line(one, service.name) for one in found]
            if service.is_headless:
                lines += [_line(pod.address, f"{pod.name}.{service.name}") for pod in endpoints]
        return "\n".join([*lines, ""])


def _line(address: str, name: str) -> str:
    return f"{address} {name} {name}.{NAMESPACE} {name}.{NAMESPACE}.svc {name}.{DOMAIN}"
