"""What the overlays hold, taken apart: objects, pods and who reaches whom."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped, unused-ignore]

ROOT: Final = Path(__file__).resolve().parents[3]
K8S: Final = ROOT / "k8s"
OVERLAYS: Final = tuple(sorted(path.parent.name for path in K8S.glob("overlays/*/kustomization.yaml")))
NAME: Final = "app.kubernetes.io/name"

Object = dict[str, Any]
"""One object of Kubernetes."""


def objects(overlay: str) -> list[Object]:
    """Every object of an overlay, as it is rendered; the caller's own copies."""
    return copy.deepcopy(_read(overlay))


@cache
def _read(overlay: str) -> list[Object]:
    return parsed((K8S / "rendered" / f"{overlay}.yaml").read_text())


def parsed(text: str) -> list[Object]:
    """The objects of a text of several."""
    # The same loader in C, where PyYAML was built with it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [found for found in yaml.load_all(text, loader) if found]


def of_kind(found: list[Object], *kinds: str) -> list[Object]:
    """The objects of some kinds."""
    return [item for item in found if item["kind"] in kinds]


@dataclass(frozen=True, slots=True)
class Workload:
    """What runs pods."""

    item: Object

    @property
    def name(self) -> str:
        """What kind of service it is: the same for engines of every model."""
        return str(self.labels[NAME])

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its pods."""
        return dict(self.item["spec"]["template"]["metadata"]["labels"])

    @property
    def pod(self) -> Object:
        """The specification of its pods."""
        return dict(self.item["spec"]["template"]["spec"])

    @property
    def containers(self) -> list[Object]:
        """All containers of a pod."""
        return [*self.pod.get("initContainers", []), *self.pod["containers"]]

    @property
    def serves(self) -> bool:
        """Whether it runs until it is told to stop."""
        return bool(self.item["kind"] != "Job")


def workloads(found: list[Object]) -> list[Workload]:
    """Everything that runs pods."""
    return [Workload(item) for item in of_kind(found, "Deployment", "StatefulSet", "Job")]


def environment(container: Object, found: list[Object]) -> dict[str, str]:
    """A container's environment, as its process would see it.

    Raises:
        KeyError: a config map that it names is not there.
    """
    maps = {item["metadata"]["name"]: item["data"] for item in of_kind(found, "ConfigMap")}
    values: dict[str, str] = {}
    for source in container.get("envFrom", []):
        values |= maps[source["configMapRef"]["name"]]
    for entry in container.get("env", []):
        value = entry.get("value") or _referred(entry)
        for name, earlier in list(values.items()):
            value = value.replace(f"$({name})", earlier)
        values[entry["name"]] = value
    return values


def _referred(entry: Object) -> str:
    source = entry["valueFrom"]
    if "secretKeyRef" in source:
        return "postgresql://somebody:secret@somewhere:5432/parrot"
    return {"status.podIP": "10.0.0.7", "metadata.name": "pod-5d8f-x2x7"}[source["fieldRef"]["fieldPath"]]


def reaches(found: list[Object], source: Object, target: Object, port: int) -> bool:
    """Whether policies let pods with one set of labels open a connection to those with another."""
    policies = [item["spec"] for item in of_kind(found, "NetworkPolicy")]
    return _lets(policies, "Egress", source, target, port) and _lets(
        policies, "Ingress", target, source, port
    )


def _lets(policies: list[Object], way: str, at: Object, peer: Object, port: int) -> bool:
    about = [spec for spec in policies if way in spec["policyTypes"] and selects(spec["podSelector"], at)]
    if not about:
        return True
    rules = [rule for spec in about for rule in spec.get(way.lower(), [])]
    side = "from" if way == "Ingress" else "to"
    return any(_names(rule.get(side), peer) and _has(rule.get("ports"), port) for rule in rules)


def _names(peers: list[Object] | None, labels: Object) -> bool:
    """Whether pods of our own namespace, which has no labels of others', are among peers."""
    if peers is None:
        return True
    return any(
        "namespaceSelector" not in one and "podSelector" in one and selects(one["podSelector"], labels)
        for one in peers
    )


def _has(ports: list[Object] | None, port: int) -> bool:
    return ports is None or any(one["port"] == port for one in ports)


def selects(selector: Object, labels: Object) -> bool:
    """Whether a label selector holds for labels."""
    wanted = selector.get("matchLabels", {})
    among = selector.get("matchExpressions", [])
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _is_among(one, labels) for one in among
    )


def _is_among(expression: Object, labels: Object) -> bool:
    if expression["operator"] != "In":
        raise NotImplementedError(expression["operator"])
    return labels.get(expression["key"]) in expression["values"]


def each_workload() -> Iterator[tuple[str, Workload]]:
    """Every workload of every overlay, with a name for it."""
    for overlay in OVERLAYS:
        for found in workloads(objects(overlay)):
            yield f"{overlay}-{found.item['metadata']['name']}", found
