"""Overlays with one component more each, rendered when they are asked for; that takes kubectl."""

from __future__ import annotations

import copy
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import yaml  # type: ignore[import-untyped, unused-ignore]
from tests.unit.deploy.manifests import K8S, OVERLAYS, Object, objects, parsed

COMPONENTS: Final = tuple(sorted(path.parent.name for path in K8S.glob("components/*/kustomization.yaml")))
BARE: Final = ("dev", "gpu")
"""Overlays to which a component can be added: `production` has them all."""
NOT_TOGETHER: Final = {
    # It is a part of that overlay.
    "gpu+scale-gateway",
    # It has a Postgres of its own.
    "dev+cloudnative-pg",
    # It is for engines that are told their model's name.
    "dev+scale-engines",
}
ADDED: Final = tuple(
    sorted({f"{overlay}+{component}" for overlay in BARE for component in COMPONENTS} - NOT_TOGETHER)
)
TOGETHER: Final = ("dev+sandbox+observe+tls+certificates+scale-gateway",)
VARIANTS: Final = OVERLAYS + ADDED + TOGETHER
KUBECTL: Final = shutil.which("kubectl") or ""
needs_kubectl: Final = pytest.mark.skipif(
    not KUBECTL, reason="there is no kubectl here, which renders manifests"
)
each_variant: Final = pytest.mark.parametrize(
    "variant",
    [pytest.param(name, marks=[needs_kubectl] if "+" in name else []) for name in VARIANTS],
)


def variant_objects(variant: str) -> list[Object]:
    """Every object of an overlay, or of one with components, as `dev+tls`; the caller's own copies."""
    if variant in OVERLAYS:
        return objects(variant)
    return copy.deepcopy(_rendered(*variant.split("+")))


@cache
def _rendered(overlay: str, *components: str) -> list[Object]:
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            os.path.relpath(K8S / place, Path(folder).resolve())
            for place in (f"overlays/{overlay}", *(f"components/{name}" for name in components))
        ]
        kustomization = {"namespace": "parrot", "resources": paths[:1], "components": paths[1:]}
        (Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
        done = subprocess.run([KUBECTL, "kustomize", folder], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return parsed(done.stdout)
