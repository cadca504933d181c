"""Alerts: they ask for what is served, fire when they should, and an operator is told what each means."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]
from tests.support import promql
from tools.observe.overview import SYSTEMS_FAULT

from parrot_runtime.ids import SHARDS

ROOT = Path(__file__).resolve().parents[3]
OBSERVE = ROOT / "deploy" / "observe"
RULES = [
    rule
    for path in sorted((OBSERVE / "rules").glob("*.yml"))
    for group in yaml.safe_load(path.read_text())["groups"]
    for rule in group["rules"]
]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDS = {rule["record"]: rule["expr"] for rule in RULES if "record" in rule}
TESTS = sorted((OBSERVE / "tests").glob("*.yml"))
TRIED = [
    found
    for path in TESTS
    for test in yaml.safe_load(path.read_text())["tests"]
    for found in test["alert_rule_test"]
]
GUIDE = (ROOT / "docs" / "operate.md").read_text()


@pytest.mark.parametrize("path", TESTS, ids=[path.stem for path in TESTS])
def test_prometheus_own_tests_of_them_hold(path: Path) -> None:
    done = promtool("test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr


def test_prometheus_takes_the_rules_and_its_configuration(tmp_path: Path) -> None:
    config = (OBSERVE / "prometheus.yml").read_text()
    here = tmp_path / "prometheus.yml"
    here.write_text(config.replace("/etc/prometheus/rules", str(OBSERVE / "rules")))
    done = promtool("check", "config", "--lint-fatal", str(here))
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


def promtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("there is no promtool here; Debian has it in the package prometheus")
    return subprocess.run([program, *arguments], check=False, capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_is_tried_in_trouble_and_in_peace(name: str) -> None:
    expected = [found["exp_alerts"] for found in TRIED if found["alertname"] == name]
    assert any(expected), "no test in which it fires"
    assert not all(expected), "no test in which it does not"


@pytest.mark.parametrize("rule", RULES, ids=[rule.get("alert") or rule["record"] for rule in RULES])
def test_a_rule_asks_for_what_is_served(rule: dict[str, Any]) -> None:
    known = promql.served() | promql.OWN
    # What is recorded has the labels that it was grouped by.
    known |= {name: promql.ALWAYS | promql.grouped_by(expr) for name, expr in RECORDS.items()}
    asked = promql.selectors(rule["expr"])
    assert asked
    for selector in asked:
        assert selector.metric in known
        assert selector.labels <= known[selector.metric]
    assert promql.grouped_by(rule["expr"]) <= set.union(*(known[selector.metric] for selector in asked))


@pytest.mark.parametrize("name", RECORDS)
def test_what_is_recorded_is_asked_for(name: str) -> None:
    asked = [selector for rule in ALERTS.values() for selector in promql.selectors(rule["expr"])]
    assert name in {selector.metric for selector in asked}


@pytest.mark.parametrize("name", ALERTS)
def test_an_alert_says_whom_it_is_for_and_what_is_wrong(name: str) -> None:
    rule = ALERTS[name]
    assert re.fullmatch(r"Parrot([A-Z][a-z]+)+", name)
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"]


def test_the_guide_has_an_entry_for_each_alert_and_for_no_other() -> None:
    section = GUIDE.partition("\n## Alerts\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `(Parrot\w+)` \| (page|ticket) \| (.+) \| (.+) \|$", section, re.MULTILINE)
    assert [name for name, *_ in told] == list(ALERTS)
    for name, severity, meaning, remedy in told:
        assert severity == ALERTS[name]["labels"]["severity"], name
        assert len(meaning) > 20, name
        assert len(remedy) > 20, name


def test_what_the_rules_know_by_number_or_by_name_is_what_it_is() -> None:
    assert ALERTS["ParrotShardsUnowned"]["expr"].endswith(f" < {SHARDS}")
    assert f'outcome=~"{SYSTEMS_FAULT}"' in RECORDS["parrot:calls_lost:ratio_rate5m"]


@pytest.mark.parametrize("path", ["deploy/observe/prometheus.yml", "k8s/components/observe/prometheus.yml"])
def test_the_jobs_that_rules_name_are_scraped(path: str) -> None:
    config = yaml.safe_load((ROOT / path).read_text())
    named = {job for rule in RULES for job in re.findall(r'job="([^"]+)"', rule["expr"])}
    assert named == {"parrot-manager", "parrot-gateway"}
    assert named < {job["job_name"] for job in config["scrape_configs"]}
