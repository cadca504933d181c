"""The profile `observe` of docker-compose.yml: what it mounts is there, and everything finds everything."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]
from tests.support import compose

OBSERVE = compose.ROOT / "deploy" / "observe"
SERVICES: dict[str, dict[str, Any]] = compose.composed()["services"]
WATCHERS = {name: service for name, service in SERVICES.items() if service.get("profiles") == ["observe"]}


def read(*parts: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(OBSERVE.joinpath(*parts).read_text())
    return found


def mounts(name: str) -> dict[str, Path]:
    """What a service has of this repository, by where it has it."""
    found = (volume.split(":") for volume in SERVICES[name].get("volumes", ()))
    return {parts[1]: compose.ROOT / parts[0] for parts in found if parts[0].startswith("./")}


def test_it_is_what_it_says_it_is() -> None:
    assert set(WATCHERS) == {"collector", "jaeger", "prometheus", "grafana"}


@pytest.mark.parametrize("name", ["collector", "prometheus", "grafana"])
def test_what_is_mounted_is_there_and_is_not_written_to(name: str) -> None:
    found = mounts(name)
    assert found
    assert [path for path in found.values() if not path.exists()] == []
    ours = [volume for volume in WATCHERS[name]["volumes"] if volume.startswith("./")]
    assert all(volume.endswith(":ro") for volume in ours)


def test_every_service_is_asked_where_its_image_says_that_it_serves() -> None:
    asked: dict[str, set[str]] = {}
    for job in read("prometheus.yml")["scrape_configs"]:
        for found in job.get("static_configs", ()):
            asked.setdefault(job["job_name"], set()).update(found["targets"])
        for found in job.get("dns_sd_configs", ()):
            hosts = {f"{host}:{found['port']}" for host in found["names"]}
            asked.setdefault(job["job_name"], set()).update(hosts)
    del asked["otel-collector"]
    serves: dict[str, set[str]] = {}
    for name, service in compose.ours(compose.composed()).items():
        if service["restart"] == "no":
            continue
        environment = compose.environment_of(service)
        host, _, port = environment["PARROT_METRICS_ADDRESS"].rpartition(":")
        assert host == "0.0.0.0"  # noqa: S104 - others ask it
        kind = {"gateway": "gateway", "manager-a": "manager", "manager-b": "manager"}.get(name, "engine")
        serves.setdefault(f"parrot-{kind}", set()).add(f"{name}:{port}")
        assert set(service["networks"]) & set(WATCHERS["prometheus"]["networks"]), name
    assert asked == serves


def test_prometheus_finds_its_configuration_and_its_rules() -> None:
    config = next(flag for flag in WATCHERS["prometheus"]["command"] if flag.startswith("--config.file="))
    found = mounts("prometheus")
    assert found[config.partition("=")[2]] == OBSERVE / "prometheus.yml"
    [pattern] = read("prometheus.yml")["rule_files"]
    folder = found[str(Path(pattern).parent)]
    assert sorted(path.name for path in folder.glob(Path(pattern).name)) == ["alerts.yml", "recording.yml"]


def test_grafana_finds_its_dashboards_and_whom_to_ask() -> None:
    found = mounts("grafana")
    [provider] = read("grafana", "provisioning", "dashboards", "parrot.yml")["providers"]
    folder = provider["options"]["path"]
    assert list(found[folder].glob("*.json"))
    home = Path(WATCHERS["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (found[str(home.parent)] / home.name).exists()
    for source in read("grafana", "provisioning", "datasources", "parrot.yml")["datasources"]:
        assert urlsplit(source["url"]).hostname in WATCHERS
    assert found["/etc/grafana/provisioning"] == OBSERVE / "grafana" / "provisioning"


def test_whoever_looks_can_change_nothing() -> None:
    environment = WATCHERS["grafana"]["environment"]
    assert environment["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
    assert environment["GF_AUTH_DISABLE_LOGIN_FORM"] == "true"
    assert environment["GF_AUTH_BASIC_ENABLED"] == "false"


def test_the_collector_is_held_to_its_memory_and_leads_to_the_traces_page() -> None:
    config = read("collector.yml")
    pipelines = config["service"]["pipelines"]
    for pipeline in pipelines.values():
        for kind in ("receivers", "processors", "exporters"):
            assert set(pipeline[kind]) <= set(config[kind])
    # Beyond its limit it refuses before it has taken anything into a batch.
    assert pipelines["traces"]["processors"] == ["memory_limiter", "batch"]
    assert config["exporters"]["otlp"]["endpoint"].partition(":")[0] in WATCHERS
    assert set(pipelines) == {"traces"}


def test_the_command_that_the_file_gives_sends_traces_to_the_collector() -> None:
    head = compose.COMPOSE.read_text().partition("\nname:")[0]
    assert "PARROT_OTLP_ENDPOINT=http://collector:4317 docker compose --profile observe up" in head
    received = read("collector.yml")["receivers"]["otlp"]["protocols"]["grpc"]["endpoint"]
    assert received == "0.0.0.0:4317"
