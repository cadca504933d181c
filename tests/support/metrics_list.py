"""What docs/metrics.md says that the services tell."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).parents[2] / "docs" / "metrics.md"
EVERY: Final = "every service"
_ROW: Final = re.compile(r"\| `(\w+)` \| (\w+) \| ([`\w, ]*)\|")


@dataclass(frozen=True, slots=True)
class Listed:
    """A metric by its name as it is asked for; of a histogram without its series' endings."""

    kind: str
    labels: frozenset[str]


def listed(service: str) -> dict[str, Listed]:
    """The metrics of a service (`manager`, `gateway`, `engine`), by name, with those that every one has."""
    found: dict[str, Listed] = {}
    for section in LIST.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        if title.lower() in {service, EVERY}:
            for name, kind, labels in _ROW.findall(text):
                found[name] = Listed(kind, frozenset(re.findall(r"\w+", labels)))
    return found
