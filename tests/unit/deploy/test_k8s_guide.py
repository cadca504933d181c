"""What docs/operate.md says of the manifests is so: their times, their names, and the commands it gives."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest
from tests.unit.deploy.manifests import (
    K8S,
    OVERLAYS,
    ROOT,
    Object,
    Workload,
    environment,
    objects,
    of_kind,
    parsed,
    workloads,
)
from tests.unit.deploy.variants import COMPONENTS, KUBECTL, needs_kubectl

GUIDE: Final = (ROOT / "docs" / "operate.md").read_text()
LLAMA: Final = K8S / "overlays" / "gpu" / "engine-llama-3-1-8b"
FOR_OPERATORS: Final = [name for name in OVERLAYS if name != "rehearsal"]
COMMANDS: Final = re.findall(r"^ *(kubectl .*)$|`(kubectl [^`\n]*)`", GUIDE, re.MULTILINE)


@pytest.mark.parametrize("name", ["gateway", "manager", "engine"])
def test_it_has_the_times_that_pods_take_to_stop(name: str) -> None:
    (row,) = re.findall(rf"^\| an? {name} \|.*\| (\d+) s[^|]*\| (\d+) s \|$", GUIDE, re.MULTILINE)
    stops_s, grace_s = map(int, row)
    for overlay in OVERLAYS:
        for workload in [found for found in workloads(objects(overlay)) if found.name == name]:
            assert stopping_s(overlay, workload) == stops_s
            assert workload.pod["terminationGracePeriodSeconds"] == grace_s


def test_it_has_every_overlay_and_every_component() -> None:
    assert {name for name in FOR_OPERATORS if f"`k8s/overlays/{name}`" not in GUIDE} == set()
    assert {name for name in COMPONENTS if f"`{name}`" not in GUIDE} == set()


def test_its_commands_name_what_is_there() -> None:
    commands = ["".join(found) for found in COMMANDS]
    assert len(commands) > 10
    kinds = {(item["kind"].lower(), item["metadata"]["name"]) for item in objects("dev")}
    for command in commands:
        for path in re.findall(r"(?:-k|--from-file=) ?(\S+)", command):
            assert (ROOT / path).exists(), command
        for kind, name in re.findall(r"\b(deployment|statefulset|service|job)[/ ]([a-z][a-z0-9-]+)", command):
            # Of the next version only the number is another.
            assert (kind, re.sub(r"^migrate-.*", "migrate-0-1-0", name)) in kinds, command


def test_the_links_between_the_manifests_own_comments_hold() -> None:
    for path in [*K8S.rglob("*.yaml"), *K8S.rglob("*.yml")]:
        if path.parent.name != "rendered":
            for name in re.findall(r"\b(?:components|overlays)/[a-z0-9-]+", comments(path)):
                assert (K8S / name).exists(), f"{path}: {name}"


@needs_kubectl
def test_an_overlay_of_ones_own_is_written_as_it_shows(tmp_path: Path) -> None:
    (text,) = [text for text in snippets() if text.startswith("resources: [../parrot/k8s/overlays/gpu]")]
    (tmp_path / "kustomization.yaml").write_text(placed(text, tmp_path))
    found = rendered(tmp_path)
    images = {one.containers[0]["image"] for one in workloads(found) if one.name == "gateway"}
    assert images == {"registry.internal/parrot/frontend:0.1.0"}
    assert "prometheus" in {one.name for one in workloads(found)}


@needs_kubectl
def test_two_models_are_scaled_each_by_itself_as_it_shows(tmp_path: Path) -> None:
    (text,) = [text for text in snippets() if text.startswith("# llama/kustomization.yaml")]
    models = {"llama": LLAMA, "other": another_model(tmp_path / "parrot-other")}
    for name, place in models.items():
        folder = tmp_path / name
        folder.mkdir()
        written = placed(text, folder).replace(os.path.relpath(LLAMA, folder), os.path.relpath(place, folder))
        (folder / "kustomization.yaml").write_text(written)
    (tmp_path / "kustomization.yaml").write_text("resources: [llama, other]\n")
    found = rendered(tmp_path)
    engines = {one.item["metadata"]["name"]: one for one in workloads(found)}
    scalers = [item["spec"] for item in of_kind(found, "ScaledObject")]
    assert {spec["scaleTargetRef"]["name"] for spec in scalers} == set(engines)
    assert set(engines) == {"engine-llama-3-1-8b", "engine-other"}
    for spec in scalers:
        container = engines[spec["scaleTargetRef"]["name"]].containers[0]
        (model,) = [entry["value"] for entry in container["env"] if entry["name"] == "PARROT_MODEL_NAME"]
        assert all(f'"{model}"' in trigger["metadata"]["query"] for trigger in spec["triggers"])


def another_model(folder: Path) -> Path:
    """The folder of one more model, made as one makes it: from the one that is there."""
    shutil.copytree(LLAMA, folder)
    for path in folder.iterdir():
        changed = re.sub(r"llama-3[-.]1-8b(-instruct)?", "other", path.read_text())
        path.write_text(changed.replace("../../../engine", os.path.relpath(K8S / "engine", folder)))
    return folder


def snippets() -> list[str]:
    """The YAML that the guide shows."""
    return re.findall(r"^```yaml\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def placed(text: str, folder: Path) -> str:
    """A kustomization that was written beside a folder `parrot`, as it is in a folder of a test."""
    return re.sub(
        r"(?:\.\./)+parrot/k8s/([\w/-]+)", lambda at: os.path.relpath(K8S / at[1], folder.resolve()), text
    )


def rendered(folder: Path) -> list[Object]:
    """What kubectl makes of a folder."""
    done = subprocess.run([KUBECTL, "kustomize", str(folder)], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)


def comments(path: Path) -> str:
    """A file's comments."""
    return "\n".join(line for line in path.read_text().splitlines() if line.strip().startswith("#"))


def stopping_s(overlay: str, workload: Workload) -> int:
    """How long a pod takes to stop at the longest, by its own settings."""
    (container,) = workload.containers
    told = environment(container, objects(overlay))
    before = container.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    return int(before) + int(told.get("PARROT_DRAIN_S") or told["PARROT_STOP_S"])
