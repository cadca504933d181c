"""What the rendered manifests say, as far as running pods takes it."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped, unused-ignore]

Object = dict[str, Any]
NAMESPACE: Final = "parrot"
HOSTNAME: Final = "kubernetes.io/hostname"
UNKNOWN: Final = ("ephemeralContainers", "hostNetwork", "hostPID", "resourceClaims", "shareProcessNamespace")
"""Parts of a pod that would change what runs, and that are not played."""


class NotPlayed(Exception):
    """The manifests ask for what the rehearsal can't do."""


@dataclass(frozen=True, slots=True)
class Workload:
    """What runs pods: a Deployment, a StatefulSet or a Job."""

    item: Object

    @property
    def kind(self) -> str:
        """Of the object."""
        return str(self.item["kind"])

    @property
    def name(self) -> str:
        """Of the object."""
        return str(self.item["metadata"]["name"])

    @property
    def replicas(self) -> int:
        """How many pods; one where it says nothing."""
        return int(self.item["spec"].get("replicas", 1))

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its pods."""
        return dict(self.item["spec"]["template"]["metadata"]["labels"])

    @property
    def pod(self) -> Object:
        """The specification of its pods."""
        found: Object = self.item["spec"]["template"]["spec"]
        return found

    @property
    def claims(self) -> list[str]:
        """The names of the volumes that each of its pods keeps."""
        return [claim["metadata"]["name"] for claim in self.item["spec"].get("volumeClaimTemplates", [])]

    def bounds(self) -> tuple[int, int]:
        """How many pods more, and how many fewer, there may be while they are replaced."""
        rolling = self.item["spec"].get("strategy", {}).get("rollingUpdate", {})
        surge = _share(rolling.get("maxSurge", "25%"), self.replicas, up=True)
        return surge, _share(rolling.get("maxUnavailable", "25%"), self.replicas, up=False)


@dataclass(frozen=True, slots=True)
class Service:
    """A name for pods. Without an address of its own it stands for all of theirs."""

    name: str
    selector: dict[str, str]
    is_headless: bool
    names_unready: bool
    ports: list[Object]

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Whether a pod with these labels is one of its endpoints."""
        return all(labels.get(key) == value for key, value in self.selector.items())


@dataclass(frozen=True, slots=True)
class Manifests:
    """All objects of an overlay."""

    objects: list[Object] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Manifests:
        """Those of a file as it is rendered.

        Raises:
            NotPlayed: a pod asks for more than is played.
        """
        found = cls([item for item in yaml.safe_load_all(path.read_text()) if item])
        for workload in found.workloads():
            _check(workload)
        return found

    def of_kind(self, *kinds: str) -> list[Object]:
        """The objects of some kinds."""
        return [item for item in self.objects if item["kind"] in kinds]

    def workloads(self) -> list[Workload]:
        """Everything that runs pods."""
        return [Workload(item) for item in self.of_kind("Deployment", "StatefulSet", "Job")]

    def services(self) -> list[Service]:
        """Every Service."""
        return [
            Service(
                item["metadata"]["name"],
                item["spec"]["selector"],
                item["spec"].get("clusterIP") == "None",
                bool(item["spec"].get("publishNotReadyAddresses")),
                item["spec"]["ports"],
            )
            for item in self.of_kind("Service")
        ]

    def files(self, kind: str, name: str) -> dict[str, str]:
        """What a ConfigMap or a Secret holds.

        Raises:
            NotPlayed: there is none of that name.
        """
        for item in self.of_kind(kind):
            if item["metadata"]["name"] == name:
                data: dict[str, str] = item.get("data", {})
                return data if kind == "ConfigMap" else _decoded(data)
        raise NotPlayed(f"there is no {kind} {name} in the manifests")

    def environment(
        self, container: Object, image: Mapping[str, str], fields: Mapping[str, str]
    ) -> dict[str, str]:
        """A container's environment, as its process sees it.

        Args:
            image: what the image sets.
            fields: the pod's own, by their path: its name and its address.
        """
        values = dict(image)
        for source in container.get("envFrom", []):
            values |= self.files("ConfigMap", source["configMapRef"]["name"])
        for entry in container.get("env", []):
            values[entry["name"]] = expanded(self._value(entry, fields), values)
        return values

    def _value(self, entry: Object, fields: Mapping[str, str]) -> str:
        source = entry.get("valueFrom")
        if source is None:
            return str(entry.get("value", ""))
        if "fieldRef" in source:
            return fields[source["fieldRef"]["fieldPath"]]
        kind = "Secret" if "secretKeyRef" in source else "ConfigMap"
        wanted = source["secretKeyRef" if kind == "Secret" else "configMapKeyRef"]
        return self.files(kind, wanted["name"])[wanted["key"]]


def expanded(text: str, values: Mapping[str, str]) -> str:
    """A text with `$(NAME)` replaced by values, as Kubernetes does it: unknown names stay."""
    return re.sub(r"\$\((\w+)\)", lambda found: values.get(found[1], found[0]), text)


def image_environment(dockerfile: Path) -> dict[str, str]:
    """What the last stage of a Dockerfile sets, but for the paths that are its own."""
    last = re.split(r"^FROM ", dockerfile.read_text(), flags=re.MULTILINE)[-1].replace("\\\n", " ")
    lines = re.findall(r"^ENV (.+)$", last, flags=re.MULTILINE)
    pairs = [pair.partition("=") for line in lines for pair in line.split()]
    return {name: value.strip('"') for name, _, value in pairs if name != "PATH"}


def dockerfiles(folder: Path) -> dict[str, Path]:
    """The Dockerfile of each image that is built here."""
    return {f"parrot/{path.stem}": path for path in folder.glob("*.Dockerfile")}


def image_name(image: str) -> str:
    """An image's name without its tag."""
    return image.rpartition(":")[0]


def host_of(pod: Object) -> str:
    """The host that a pod asks for; empty: any."""
    return str(pod.get("nodeSelector", {}).get(HOSTNAME, ""))


def _decoded(data: Mapping[str, str]) -> dict[str, str]:
    return {name: base64.b64decode(value).decode() for name, value in data.items()}


def _share(value: int | str, of: int, *, up: bool) -> int:
    if isinstance(value, int):
        return value
    hundredths = int(value.removesuffix("%")) * of
    return -(-hundredths // 100) if up else hundredths // 100


def _check(workload: Workload) -> None:
    extra = [name for name in UNKNOWN if workload.pod.get(name)]
    extra += ["several containers"] if len(workload.pod["containers"]) > 1 else []
    extra += ["initContainers"] if workload.pod.get("initContainers") else []
    if extra:
        raise NotPlayed(f"{workload.kind} {workload.name}: {_and(extra)} of its pods can't be rehearsed")


def _and(words: Iterable[str]) -> str:
    return " and ".join(words)
