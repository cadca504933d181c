"""What is asked of manifests as a whole: kube-linter's checks of how objects fit together, by its names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tests.unit.deploy.manifests import Object, Workload, of_kind, selects, workloads

Complaints = Iterator[str]
PORT_NAME: Final = re.compile(r"(?=.{1,15}$)(?=.*[a-z])[a-z0-9]+(-[a-z0-9]+)*")


def _services_have_pods(found: list[Object]) -> Complaints:
    for item in of_kind(found, "Service"):
        selector = {"matchLabels": item["spec"].get("selector", {})}
        if not selector["matchLabels"] or not any(selects(selector, one.labels) for one in workloads(found)):
            yield f"no pod is behind the service {item['metadata']['name']}"


def _services_lead_to_open_ports(found: list[Object]) -> Complaints:
    for item in of_kind(found, "Service"):
        selector = {"matchLabels": item["spec"].get("selector", {})}
        for one in workloads(found):
            if selects(selector, one.labels):
                yield from _leads_nowhere(item, one)


def _leads_nowhere(service: Object, one: Workload) -> Complaints:
    ports = [port for container in one.containers for port in container.get("ports", [])]
    names = {port["name"] for port in ports} | {port["containerPort"] for port in ports}
    for entry in service["spec"]["ports"]:
        target = entry.get("targetPort", entry["port"])
        if target not in names or (isinstance(target, str) and not PORT_NAME.fullmatch(target)):
            yield f"{service['metadata']['name']} leads to {target}, which {one.name} does not open"


def _services_are_inner(found: list[Object]) -> Complaints:
    for item in of_kind(found, "Service"):
        if item["spec"].get("type", "ClusterIP") != "ClusterIP":
            yield f"{item['metadata']['name']} is open to the world; that is an ingress's part"


def _accounts_are_there(found: list[Object]) -> Complaints:
    names = {item["metadata"]["name"] for item in of_kind(found, "ServiceAccount")}
    for one in workloads(found):
        if one.pod.get("serviceAccountName") not in names:
            yield f"{one.name} runs as {one.pod.get('serviceAccountName')}, which is not there"


def _priorities_are_there(found: list[Object]) -> Complaints:
    names = {item["metadata"]["name"] for item in of_kind(found, "PriorityClass")}
    for one in workloads(found):
        if one.pod.get("priorityClassName") not in names:
            yield f"{one.name} has the priority {one.pod.get('priorityClassName')}, which is not there"


def _budgets_let_nodes_be_drained(found: list[Object]) -> Complaints:
    for item, one in budgeted(found):
        spec = item["spec"]
        if (
            spec.get("minAvailable", 0) >= one.item["spec"].get("replicas", 2)
            or spec.get("maxUnavailable") == 0
        ):
            yield f"the budget {item['metadata']['name']} never lets a pod of {one.name} go"


def _budgets_say_what_of_the_sick(found: list[Object]) -> Complaints:
    for item in of_kind(found, "PodDisruptionBudget"):
        if "unhealthyPodEvictionPolicy" not in item["spec"]:
            yield f"{item['metadata']['name']} does not say whether pods that don't work may go"


def budgeted(found: list[Object]) -> Iterator[tuple[Object, Workload]]:
    """Every disruption budget with each workload it is about."""
    for item in of_kind(found, "PodDisruptionBudget"):
        yield from ((item, one) for one in workloads(found) if selects(item["spec"]["selector"], one.labels))


def _scalers_have_somebody_to_scale(found: list[Object]) -> Complaints:
    for item in of_kind(found, "HorizontalPodAutoscaler", "ScaledObject"):
        target = item["spec"]["scaleTargetRef"]
        kind = target.get("kind", "Deployment")
        names = {one["metadata"]["name"]: one for one in of_kind(found, kind)}
        if target["name"] not in names:
            yield f"there is no {target['name']} for {item['metadata']['name']} to scale"
        elif "replicas" in names[target["name"]]["spec"]:
            yield f"{target['name']} is scaled by load and by hand"


def _policies_are_about_somebody(found: list[Object]) -> Complaints:
    pods = [one.labels for one in workloads(found)]
    # An operator's pods, which are labelled with the name of what it keeps.
    pods += [{"cnpg.io/cluster": item["metadata"]["name"]} for item in of_kind(found, "Cluster")]
    for item in of_kind(found, "NetworkPolicy"):
        for selector in _own_selectors(item["spec"]):
            if not any(selects(selector, labels) for labels in pods):
                yield f"the policy {item['metadata']['name']} names pods that are not there: {selector}"


def _own_selectors(spec: Object) -> Iterator[Object]:
    yield spec["podSelector"]
    rules: list[Any] = [*spec.get("ingress", []), *spec.get("egress", [])]
    for peer in (peer for rule in rules for peer in (rule.get("from") or rule.get("to") or [])):
        if "podSelector" in peer and "namespaceSelector" not in peer:
            yield peer["podSelector"]


def _policies_are_about_everybody(found: list[Object]) -> Complaints:
    specs = [item["spec"] for item in of_kind(found, "NetworkPolicy")]
    for one in workloads(found):
        for way in ("Ingress", "Egress"):
            if not any(
                way in spec["policyTypes"] and selects(spec["podSelector"], one.labels) for spec in specs
            ):
                yield f"no policy is about {way} of {one.name}"


def _all_is_in_the_namespace(found: list[Object]) -> Complaints:
    names = [item["metadata"]["name"] for item in of_kind(found, "Namespace")]
    for item in found:
        if (
            item["kind"] not in {"Namespace", "PriorityClass"}
            and [item["metadata"].get("namespace")] != names
        ):
            yield f"{item['kind']} {item['metadata']['name']} is not in the namespace"


def _nobody_has_rights(found: list[Object]) -> Complaints:
    for item in found:
        if item["apiVersion"].startswith("rbac."):
            yield f"{item['kind']} {item['metadata']['name']} gives rights in the cluster"


CHECKS: Final[Mapping[str, Callable[[list[Object]], Complaints]]] = {
    "dangling-service": _services_have_pods,
    "invalid-target-ports": _services_lead_to_open_ports,
    "exposed-services": _services_are_inner,
    "non-existent-service-account, default-service-account": _accounts_are_there,
    "priority-class-name": _priorities_are_there,
    "pdb-max-unavailable, pdb-min-available": _budgets_let_nodes_be_drained,
    "pdb-unhealthy-pod-eviction-policy": _budgets_say_what_of_the_sick,
    "dangling-horizontalpodautoscaler": _scalers_have_somebody_to_scale,
    "dangling-networkpolicy, dangling-networkpolicypeer-podselector": _policies_are_about_somebody,
    "non-isolated-pod": _policies_are_about_everybody,
    "use-namespace": _all_is_in_the_namespace,
    "access-to-create-pods, access-to-secrets, cluster-admin-role-binding": _nobody_has_rights,
}
"""Each says what is wrong, in words; nothing when all is well."""
