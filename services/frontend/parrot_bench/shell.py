"""What a benchmark's servers are to know of the shell that it runs in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Final

KEPT: Final = frozenset({"PARROT_CACHE_DIR"})
"""Of the environment's own settings of services: one that changes no figure."""


def apart(command: Sequence[str], given: Mapping[str, str] | None = None) -> list[str]:
    """The command, without what this shell happens to say of services: no system is set by chance.

    Args:
        given: what its environment holds beside.
    """
    foreign = [name for name in os.environ if name.startswith("PARROT_") and name not in KEPT]
    unset = [flag for name in foreign for flag in ("-u", name)]
    return ["env", *unset, *(f"{name}={value}" for name, value in (given or {}).items()), *command]
