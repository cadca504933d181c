"""docker-compose.yml and the Dockerfiles, as far as tests ask about them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped, unused-ignore]

ROOT: Final = Path(__file__).resolve().parent.parent.parent
COMPOSE: Final = ROOT / "docker-compose.yml"
DOCKERFILES: Final = sorted((ROOT / "docker").glob("*.Dockerfile"))


def composed(variables: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The compose file, anchors and variables resolved; those have their default where none is given."""

    def value(found: re.Match[str]) -> str:
        return (variables or {}).get(found["name"], found["default"])

    text = re.sub(r"\$\{(?P<name>\w+):-(?P<default>[^}]*)\}", value, COMPOSE.read_text())
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def ours(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The services that are built here, by name."""
    return {name: service for name, service in document["services"].items() if "build" in service}


def dockerfile_of(service: Mapping[str, Any]) -> Path:
    """What a service is built from."""
    return ROOT / str(service["build"]["dockerfile"])


def environment_of(service: Mapping[str, Any]) -> dict[str, str]:
    """What a container of ours has in its environment: its image's, then its own."""
    own = {name: "" if value is None else str(value) for name, value in service["environment"].items()}
    return image_environment(dockerfile_of(service)) | own


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Its instructions in order, each with the rest of its line or lines."""
    kept = [line for line in dockerfile.read_text().splitlines() if line and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(kept))
    pairs = [line.partition(" ") for line in joined.splitlines()]
    return [(name, rest.strip()) for name, _, rest in pairs]


def stage(dockerfile: Path, name: str) -> list[tuple[str, str]]:
    """The instructions of one of its stages, the one that starts it included."""
    every = instructions(dockerfile)
    starts = [place for place, (instruction, _) in enumerate(every) if instruction == "FROM"]
    start = next(place for place in starts if every[place][1].endswith(f" AS {name}"))
    return every[start : next((place for place in starts if place > start), None)]


def image(dockerfile: Path) -> list[tuple[str, str]]:
    """The instructions of its last stage: what becomes the image."""
    every = instructions(dockerfile)
    last = max(place for place, (name, _) in enumerate(every) if name == "FROM")
    return every[last:]


def image_environment(dockerfile: Path) -> dict[str, str]:
    """The variables an image sets."""
    words = [word for name, rest in image(dockerfile) if name == "ENV" for word in shlex.split(rest)]
    return {name: value for name, _, value in (word.partition("=") for word in words)}


def entry_point(dockerfile: Path) -> list[str]:
    """What an image starts."""
    command: list[str] = json.loads(dict(image(dockerfile))["ENTRYPOINT"])
    return command


def tool(name: str) -> str | None:
    """A program beside this Python, else on the PATH; None where there is none."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else shutil.which(name)
