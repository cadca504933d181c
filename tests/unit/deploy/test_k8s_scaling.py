"""Autoscalers ask for what services serve, of the model they scale, and answer as operators would."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]
from tests.support.metrics_list import listed
from tests.unit.deploy.manifests import (
    K8S,
    ROOT,
    Object,
    Workload,
    environment,
    objects,
    of_kind,
    selects,
    workloads,
)

FOUND = objects("production")
(SCALER,) = of_kind(FOUND, "ScaledObject")
(ENGINE,) = [one for one in workloads(FOUND) if one.name == "engine"]
WAITING, BUSY = SCALER["spec"]["triggers"]
PROMTOOL = shutil.which("promtool") or ""


def told(one: Workload) -> dict[str, str]:
    """The environment of a workload's container."""
    return environment(one.containers[0], FOUND)


def test_the_engines_of_a_model_are_scaled_by_their_own_calls() -> None:
    assert SCALER["spec"]["scaleTargetRef"]["name"] == ENGINE.item["metadata"]["name"]
    for trigger in (WAITING, BUSY):
        assert f'{{model="{told(ENGINE)["PARROT_MODEL_NAME"]}"}}' in trigger["metadata"]["query"]
        assert "MODEL" not in trigger["metadata"]["query"]


def test_services_serve_what_the_scaler_asks_for() -> None:
    served = listed("manager") | listed("engine")
    asked = {
        (name, label)
        for trigger in (WAITING, BUSY)
        for name, label in re.findall(r"(parrot_\w+)(?:\{(\w+)=)?", trigger["metadata"]["query"])
    }
    assert len(asked) == 3
    for name, label in asked:
        assert served[name].kind in {"gauge", "info"}
        assert not label or label in served[name].labels, name


def test_engines_are_as_many_as_leave_a_quarter_of_their_capacity_free() -> None:
    assert BUSY["metricType"] == "AverageValue"
    assert float(BUSY["metadata"]["threshold"]) == 0.75 * int(told(ENGINE)["PARROT_CAPACITY"])


def test_what_can_not_be_measured_changes_nothing() -> None:
    # KEDA's own default takes "no such series" for 0, and would end engines because Prometheus is new.
    for trigger in (WAITING, BUSY):
        assert trigger["metadata"]["ignoreNullValues"] == "false"


def test_no_model_is_left_with_a_single_engine_or_none() -> None:
    assert SCALER["spec"]["minReplicaCount"] >= 2
    assert "idleReplicaCount" not in SCALER["spec"]


def test_engines_go_one_by_one_and_not_faster_than_they_drain() -> None:
    down = SCALER["spec"]["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]["scaleDown"]
    (policy,) = down["policies"]
    assert policy["value"] == 1
    assert policy["periodSeconds"] >= ENGINE.pod["terminationGracePeriodSeconds"]
    assert down["stabilizationWindowSeconds"] >= 600


def test_the_scaler_asks_the_prometheus_that_is_there_and_keda_is_let_in() -> None:
    (service,) = [one for one in of_kind(FOUND, "Service") if one["metadata"]["name"] == "prometheus"]
    about = service["metadata"]
    address = f"http://{about['name']}.{about['namespace']}.svc:{service['spec']['ports'][0]['port']}"
    assert {trigger["metadata"]["serverAddress"] for trigger in (WAITING, BUSY)} == {address}
    (policy,) = [one for one in of_kind(FOUND, "NetworkPolicy") if one["metadata"]["name"] == "prometheus"]
    (rule,) = policy["spec"]["ingress"]
    assert rule["from"] == [{"namespaceSelector": {"matchLabels": {"parrot/telemetry": "true"}}}]


def test_prometheus_finds_every_service_by_a_name_that_leads_to_its_monitor() -> None:
    config = prometheus()
    services = {one["metadata"]["name"]: one["spec"] for one in of_kind(FOUND, "Service")}
    for job in config["scrape_configs"]:
        (about,) = job["dns_sd_configs"]
        (name,) = about["names"]
        kind = job["job_name"].removeprefix("parrot-")
        assert services[name]["clusterIP"] == "None"
        # What is not ready is what has to be looked at.
        assert services[name]["publishNotReadyAddresses"] is True
        selector = {"matchLabels": services[name]["selector"]}
        (one,) = [one for one in workloads(FOUND) if selects(selector, one.labels)]
        assert one.name == kind
        ports = {entry["name"]: entry["containerPort"] for entry in one.containers[0]["ports"]}
        assert ports["monitor"] == about["port"]
        assert told(one)["PARROT_METRICS_ADDRESS"].endswith(f":{about['port']}")


def test_prometheus_knows_services_by_the_names_that_rules_and_dashboards_use() -> None:
    beside_compose = yaml.safe_load((ROOT / "deploy" / "observe" / "prometheus.yml").read_text())
    ours = {job["job_name"] for job in prometheus()["scrape_configs"]}
    assert ours == {"parrot-gateway", "parrot-manager", "parrot-engine"}
    assert ours <= {job["job_name"] for job in beside_compose["scrape_configs"]}


def test_prometheus_is_given_every_rule() -> None:
    (rules,) = [one for one in of_kind(FOUND, "ConfigMap") if "prometheus-rules" in one["metadata"]["name"]]
    files = (ROOT / "deploy" / "observe" / "rules").glob("*.yml")
    assert set(rules["data"]) == {path.name for path in files}


@pytest.mark.skipif(not PROMTOOL, reason="there is no promtool here")
def test_prometheus_takes_its_configuration(tmp_path: Path) -> None:
    config = tmp_path / "prometheus.yml"
    config.write_text((K8S / "components" / "observe" / "prometheus.yml").read_text())
    command = [PROMTOOL, "check", "config", "--syntax-only", str(config)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


CASES: list[tuple[str, list[tuple[str, float]], list[float], list[float]]] = [
    # What services serve, and what the queries give: seconds that calls wait, and programs on engines.
    (
        "the longest wait at any manager counts, and none of other models",
        [
            ('parrot_manager_queue_oldest_seconds{model="M", instance="a"}', 1.5),
            ('parrot_manager_queue_oldest_seconds{model="M", instance="b"}', 9),
            ('parrot_manager_queue_oldest_seconds{model="other", instance="b"}', 99),
        ],
        [9],
        [],
    ),
    (
        "calls for any model count for each",
        [
            ('parrot_manager_queue_oldest_seconds{model="M", instance="a"}', 0),
            ('parrot_manager_queue_oldest_seconds{model="any", instance="a"}', 4),
        ],
        [4],
        [],
    ),
    (
        "programs of every state are counted, of the model's engines alone",
        [
            ('parrot_engine_programs_now{state="running", instance="e1"}', 40),
            ('parrot_engine_programs_now{state="waiting", instance="e1"}', 3),
            ('parrot_engine_programs_now{state="running", instance="e2"}', 20),
            ('parrot_engine_programs_now{state="running", instance="e3"}', 60),
            ('parrot_engine_info{model="M", engine_id="one", instance="e1"}', 1),
            ('parrot_engine_info{model="M", engine_id="two", instance="e2"}', 1),
            ('parrot_engine_info{model="other", engine_id="three", instance="e3"}', 1),
        ],
        [],
        [63],
    ),
]


@pytest.mark.skipif(not PROMTOOL, reason="there is no promtool here")
@pytest.mark.parametrize(
    ("series", "waiting", "busy"), [case[1:] for case in CASES], ids=[c[0] for c in CASES]
)
def test_the_queries_give(
    series: list[tuple[str, float]], waiting: list[float], busy: list[float], tmp_path: Path
) -> None:
    model = told(ENGINE)["PARROT_MODEL_NAME"]
    about = [{"series": name.replace('"M"', f'"{model}"'), "values": f"{value}x5"} for name, value in series]
    asked = [
        {
            "expr": trigger["metadata"]["query"],
            "eval_time": "2m",
            "exp_samples": [{"labels": "{}", "value": value} for value in values],
        }
        for trigger, values in ((WAITING, waiting), (BUSY, busy))
    ]
    path = tmp_path / "queries.yml"
    path.write_text(json.dumps({"tests": [{"input_series": about, "promql_expr_test": asked}]}))
    done = subprocess.run([PROMTOOL, "test", "rules", str(path)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_gateways_are_scaled_before_one_is_full() -> None:
    for overlay in ("gpu", "production"):
        (scaler,) = of_kind(objects(overlay), "HorizontalPodAutoscaler")
        assert scaler["spec"]["minReplicas"] >= 2
        (metric,) = scaler["spec"]["metrics"]
        # A gateway is one process with one event loop: a core is all that it can use.
        found = re.fullmatch(r"(\d+)m", metric["resource"]["target"]["averageValue"])
        assert found is not None
        assert int(found[1]) < 800


def prometheus() -> Object:
    """The configuration of the Prometheus in the namespace."""
    maps = [one for one in of_kind(FOUND, "ConfigMap") if "prometheus.yml" in one["data"]]
    config: Any = yaml.safe_load(maps[0]["data"]["prometheus.yml"])
    return dict(config)
