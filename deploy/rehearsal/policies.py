"""NetworkPolicies, as a cluster's network carries them out: new connections that none allows are dropped."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from deploy.rehearsal.manifests import NotPlayed, Object
from deploy.rehearsal.network import EGRESS, INGRESS, rules_of
from deploy.rehearsal.pod import Pod


@dataclass(frozen=True, slots=True)
class Way:
    """One of the two ways that a connection goes, seen from a pod.

    Attributes:
        name: in a policy.
        peers: the policy's name of whom it lets.
        own: the option for the pod's address.
        peer: the option for the other's.
    """

    name: str
    peers: str
    chain: str
    own: str
    peer: str


WAYS: Final = (Way("Egress", "to", EGRESS, "-s", "-d"), Way("Ingress", "from", INGRESS, "-d", "-s"))


class Policies:
    """All policies of the namespace."""

    def __init__(self, objects: Iterable[Object]) -> None:
        self._specs: list[Object] = [item["spec"] for item in objects]

    def rules(self, host: str, pods: Sequence[Pod]) -> str:
        """What a host lets its pods do, and others do with them.

        Raises:
            NotPlayed: a policy is of a kind that is not played.
        """
        own = [pod for pod in pods if pod.host == host and pod.address]
        lines = [line for way in WAYS for pod in own for line in self._lines(way, pod, pods)]
        return rules_of(lines, "filter", [EGRESS, INGRESS])

    def _lines(self, way: Way, pod: Pod, pods: Sequence[Pod]) -> Iterator[str]:
        about = [spec for spec in self._specs if way.name in spec["policyTypes"] and _selects(spec, pod)]
        start = f"-A {way.chain} {way.own} {pod.address}/32"
        for rule in (rule for spec in about for rule in spec.get(way.name.lower(), [])):
            for peer in _peers(rule.get(way.peers), pods):
                other = f" {way.peer} {peer}" if peer else ""
                yield from (f"{start}{other}{port} -j RETURN" for port in _ports(rule))
        if about:
            yield f"{start} -j DROP"


def _selects(spec: Object, pod: Pod) -> bool:
    return matches(spec["podSelector"], pod.workload.labels)


def _peers(peers: list[Object] | None, pods: Iterable[Pod]) -> Iterator[str]:
    """The ranges of addresses of peers; empty: everybody's."""
    if peers is None:
        yield ""
        return
    for peer in peers:
        if "ipBlock" in peer:
            yield _range(peer["ipBlock"])
        # Other namespaces have no pods here.
        elif "namespaceSelector" not in peer:
            found = [pod for pod in pods if matches(peer["podSelector"], pod.workload.labels)]
            yield from (f"{pod.address}/32" for pod in found if pod.address)


def _range(block: Object) -> str:
    if "except" in block or ":" in block["cidr"]:
        raise NotPlayed(f"a NetworkPolicy names addresses in a way that is not played: {block}")
    return str(block["cidr"])


def _ports(rule: Object) -> list[str]:
    """A rule's ports, as options; one empty option for all of them."""
    ports: list[Object] | None = rule.get("ports")
    if ports is None:
        return [""]
    if any("endPort" in port or not isinstance(port.get("port"), int) for port in ports):
        raise NotPlayed(
            f"a NetworkPolicy names ports otherwise than by a number, which is not played: {ports}"
        )
    return [f" -p {port.get('protocol', 'TCP').lower()} --dport {port['port']}" for port in ports]


def matches(selector: Object, labels: Mapping[str, str]) -> bool:
    """Whether a label selector holds for labels.

    Raises:
        NotPlayed: it has an operator other than `In`.
    """
    expressions: list[Object] = selector.get("matchExpressions", [])
    if any(one["operator"] != "In" for one in expressions):
        raise NotPlayed(f"a label selector has an operator that is not played: {selector}")
    wanted: Mapping[str, str] = selector.get("matchLabels", {})
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        labels.get(one["key"]) in one["values"] for one in expressions
    )
