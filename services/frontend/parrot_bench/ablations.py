"""Parrot with one of its features off, or one more on, to see what that is worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

PREFIX: Final = "parrot-without-"
POLICY_PREFIX: Final = "parrot-as-"
ADDED_PREFIX: Final = "parrot-with-"

SCHEDULER: Final = ("grouping", "prefix_affinity", "objectives", "streaming_edges", "app_order")
ENGINE: Final = ("static_prefill", "dynamic_prefill", "prefix_sharing")
FEATURES: Final = (*SCHEDULER, *ENGINE)
ADDED: Final[Mapping[str, Mapping[str, str]]] = {"attention": {"PARROT_ATTENTION": "parrot"}}
"""What is off unless somebody asks for it, and the settings that do: not among "all"."""
POLICIES: Final = ("request_fifo", "request_least_loaded", "prefix_affinity_only")
"""Ways of scheduling that see requests, not applications; they stand for all of the scheduler's features."""


def names(asked: Iterable[str]) -> list[str]:
    """The systems that `--ablate` asks for, each once.

    Args:
        asked: features, policies, additions, or "all" for every feature.

    Raises:
        ValueError: one is none of these.
    """
    found: list[str] = []
    for name in asked:
        if name == "all":
            found += [PREFIX + feature for feature in FEATURES]
        elif name in POLICIES:
            found.append(POLICY_PREFIX + name)
        elif name in FEATURES:
            found.append(PREFIX + name)
        elif name in ADDED:
            found.append(ADDED_PREFIX + name)
        else:
            known = ", ".join((*FEATURES, *POLICIES))
            added = ", ".join(ADDED)
            raise ValueError(
                f"there is no {name} to switch off; there are {known}, and all; to switch on: {added}"
            )
    return list(dict.fromkeys(found))


def environment(system: str) -> Mapping[str, str]:
    """The services' settings that make a system of it, by their PARROT_ names; of "parrot", none.

    Raises:
        KeyError: there is no such system.
    """
    if system == "parrot":
        return {}
    if system.startswith(POLICY_PREFIX) and system.removeprefix(POLICY_PREFIX) in POLICIES:
        return {"PARROT_SCHEDULING": system.removeprefix(POLICY_PREFIX)}
    if system.startswith(ADDED_PREFIX):
        return ADDED[system.removeprefix(ADDED_PREFIX)]
    feature = system.removeprefix(PREFIX)
    if system == feature or feature not in FEATURES:
        raise KeyError(system)
    if feature in SCHEDULER:
        return {"PARROT_SCHEDULING_WITHOUT": feature}
    return {f"PARROT_{feature.upper()}": "false"}


def systems() -> list[str]:
    """Parrot, and every way to have less of it, or more."""
    without = [PREFIX + feature for feature in FEATURES]
    return [
        "parrot",
        *without,
        *(POLICY_PREFIX + policy for policy in POLICIES),
        *(ADDED_PREFIX + name for name in ADDED),
    ]
