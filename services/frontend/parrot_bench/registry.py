"""The systems by their names, each loaded when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Final

from parrot_bench import ablations
from parrot_bench.systems.base import Settings, System

OURS: Final = "parrot"
ROUTED: Final = ("client-round-robin", "client-prefix-aware", "client-priority-prefix-aware")
"""Baselines that say which of several engines a request goes to."""

_CLIENT: Final = "parrot_bench.systems.client"
_MODULES: Final[Mapping[str, str]] = {
    **dict.fromkeys(ablations.systems(), "parrot_bench.systems.parrot"),
    **dict.fromkeys(("client", "client-priority", "client-ngram", "client-small-batch", *ROUTED), _CLIENT),
    "langchain": "parrot_bench.systems.langchain",
}
NAMES: Final = tuple(_MODULES)


def defaults(workload: str, engines: int) -> list[str]:
    """The systems that are compared when nobody says which: Parrot, and the baselines that could win."""
    routed = ROUTED if engines > 1 else ()
    tuned = ["client-small-batch"] if workload == "mixed" else []
    return [OURS, "client", "client-priority", *routed, *tuned, "langchain"]


def check(names: Sequence[str]) -> None:
    """Finds names that no system has.

    Raises:
        ValueError: there is one, or one stands twice.
    """
    for name in names:
        if name not in _MODULES:
            raise ValueError(f"there is no system {name}; there are {', '.join(NAMES)}")
        if names.count(name) > 1:
            raise ValueError(f"the system {name} stands twice")


def make(name: str, settings: Settings) -> System:
    """The system of this name, not started.

    Raises:
        KeyError: there is none.
    """
    system: System = importlib.import_module(_MODULES[name]).make(name, settings)
    return system


def is_baseline(name: str) -> bool:
    """Whether it is none of ours."""
    return not name.startswith(OURS)


def short(name: str) -> str:
    """What a metric calls a system: `round_robin`, `client_priority`."""
    plain = name.removeprefix("client-") if name in {"client-round-robin", "client-prefix-aware"} else name
    return plain.replace("-", "_")
