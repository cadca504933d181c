"""Holds objects against the schemas of Kubernetes and of the add-ons that components are for, all offline.

The schemas are those of the package kubernetes-validate; read once here, which it does for each object.
"""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

import kubernetes_validate
import yaml  # type: ignore[import-untyped, unused-ignore]
from jsonschema import Draft202012Validator, ValidationError
from referencing import Registry, Resource
from tests.unit.deploy.manifests import Object

__all__ = ["ValidationError", "validate"]
VERSION: Final = kubernetes_validate.latest_version()
STRICT: Final = files("kubernetes_validate").joinpath(f"kubernetes-json-schema/v{VERSION}-local-strict")

ADD_ONS: Final = ("cert_manager", "cnpg", "keda")


def validate(item: Object) -> None:
    """Holds an object against its schema, in which nothing unknown has a place.

    Raises:
        ValidationError: where it does not fit.
        FileNotFoundError: its kind is neither Kubernetes' nor a known add-on's.
    """
    _validator(item["apiVersion"], item["kind"]).validate(item)


@cache
def _validator(api_version: str, kind: str) -> Draft202012Validator:
    schema = _add_ons().get((api_version, kind))
    if schema is not None:
        return Draft202012Validator(schema)
    # As its files are named: networking.k8s.io/v1 is networking-v1.
    version = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    return Draft202012Validator(_read(f"{kind.lower()}-{version}.json"), registry=_definitions())


@cache
def _definitions() -> Registry[Any]:
    return Resource.from_contents(_read("_definitions.json")) @ Registry()


def _read(name: str) -> Any:
    return json.loads(STRICT.joinpath(name).read_text())


@cache
def _add_ons() -> dict[tuple[str, str], Any]:
    found = {}
    folder = Path(__file__).parent
    for path in (path for add_on in ADD_ONS for path in folder.glob(f"{add_on}_*.yaml")):
        spec = yaml.safe_load(path.read_text())["spec"]
        for version in spec["versions"]:
            schema = _closed(version["schema"]["openAPIV3Schema"])
            # A definition says nothing of what all objects have.
            schema["properties"]["metadata"] = {"type": "object", "required": ["name", "namespace"]}
            found[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return found


def _closed(schema: Any) -> Any:
    """The schema, with every object whose fields are listed closed to others."""
    if isinstance(schema, list):
        return [_closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(part) for name, part in schema.items()}
    if isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed
