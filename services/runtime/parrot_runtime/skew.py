"""Processes of two releases that work together, as they do while one takes the other's place.

Releases next to each other do: they differ by one in the second number of their version. Each process says
its version to whom it dials, and is told the other's. Further apart nobody has tried, so the manager, whom
everybody dials, refuses.
"""

from __future__ import annotations

import re
from typing import Final

import structlog

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.version import parrot_version

METADATA_KEY: Final = "parrot-version"
LONGEST_VERSION: Final = 64
MOST_NOTED: Final = 64

_noted: set[tuple[str, str]] = set()
log = structlog.get_logger()


def check(peer: str, version: str) -> None:
    """Lets in a peer of this release or one next to it, or one that does not say (a tool of somebody's).

    Raises:
        Fault: `unavailable`, naming both versions: one of the two is about to be replaced.
    """
    own = parrot_version()
    if version == own or not version:
        return
    ours, theirs = release_of(own), release_of(version)
    if ours is None or theirs is None or (ours[0] == theirs[0] and abs(ours[1] - theirs[1]) <= 1):
        note(peer, version)
        return
    raise Fault(
        errors.UNAVAILABLE,
        f"the {peer} is Parrot {version[:LONGEST_VERSION]}, this manager {own}: only releases next to each "
        "other work together; bring the one that is behind up one release at a time",
        retry_after_ms=1000,
    )


def note(peer: str, version: str) -> None:
    """Logs, once, that a peer is of another version."""
    version = version[:LONGEST_VERSION]
    if not version or version == parrot_version() or (peer, version) in _noted or len(_noted) >= MOST_NOTED:
        return
    _noted.add((peer, version))
    log.info("a peer is of another version", peer=peer, version=version, own=parrot_version())


def release_of(version: str) -> tuple[int, int] | None:
    """The two numbers of a version that make it a release; None when it has none."""
    match = re.match(r"(\d{1,9})\.(\d{1,9})(?!\d)", version)
    return (int(match[1]), int(match[2])) if match else None
