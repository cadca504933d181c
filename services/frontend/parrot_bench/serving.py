"""Real vLLM servers for the baselines: started, waited for, shared, and stopped with all they started."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import httpx

from parrot_bench.shell import apart
from parrot_bench.systems.base import Say, Settings, Unavailable
from parrot_cli.child import Child, Spec, describe_exit
from parrot_cli.crew import start_watchdog
from parrot_cli.options import free_port

PROGRAM: Final = "parrot_bench.vllm_server"
READY_WITHIN_S: Final = 300.0
POLL_S: Final = 0.1
SAY_EACH_S: Final = 1.0
STOP_WITHIN_S: Final = 10.0
LINE_CHARS: Final = 100
_NOISE: Final = re.compile(r"\x1b\[[0-9;]*m|^\(\w+ pid=\d+\) |^[A-Z]+ \d\d-\d\d [\d:]+ \[[^\]]*\] ")
"""Colours, and what stands before a line of vLLM's log."""


@dataclass(frozen=True, slots=True)
class Variant:
    """In what a baseline's server differs from the plain one.

    Attributes:
        priority: it heeds the priorities of requests.
        ngram: it speculates by prompt lookup.
        step_tokens: tokens a step works on at most; 0: as many as a Parrot engine.
    """

    priority: bool = False
    ngram: bool = False
    step_tokens: int = 0

    @property
    def label(self) -> str:
        """For logs and people."""
        parts = [
            *(["priority"] if self.priority else []),
            *(["ngram"] if self.ngram else []),
            *([f"steps-of-{self.step_tokens}"] if self.step_tokens else []),
        ]
        return "-".join(parts) or "plain"


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Servers that answer.

    Attributes:
        urls: of their APIs, `http://host:port/v1`.
        model: its name there.
        pids: of those that were started for this.
    """

    urls: tuple[str, ...]
    model: str
    pids: frozenset[int] = frozenset()


@asynccontextmanager
async def endpoints(variant: Variant, settings: Settings, say: Say) -> AsyncIterator[Endpoints]:
    """Servers of a variant while the `with` lasts: those the settings name, or ones started for it.

    What several ask for at once is started once, and stopped after the last of them.

    Raises:
        Unavailable: there are none, and why.
    """
    if settings.endpoints:
        yield await _given(variant, settings)
        return
    if settings.backend != "vllm":
        raise Unavailable(
            f"this baseline needs vLLM, and the backend is {settings.backend}: take --backend vllm, or "
            "name servers with OpenAI's API"
        )
    async with _shared(variant, settings, say) as found:
        yield found


def engine_flags(variant: Variant, settings: Settings) -> list[str]:
    """What a server is told, in a Parrot engine's flags."""
    return [
        *("--model", settings.model, "--dtype", settings.dtype, "--threads", str(settings.engine_threads)),
        *("--step-tokens", str(variant.step_tokens or settings.step_tokens)),
        *("--kv-cache-mib", str(settings.kv_cache_mib)),
        *(["--priority"] if variant.priority else []),
        *(["--ngram"] if variant.ngram else []),
    ]


async def first_model(url: str) -> str:
    """The first model that a server lists.

    Raises:
        Unavailable: it lists none, or does not answer.
    """
    try:
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            answer = await client.get(f"{url}/models")
            return str(answer.raise_for_status().json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        raise Unavailable(f"{url}/models names no model: {error or type(error).__name__}") from None


async def _given(variant: Variant, settings: Settings) -> Endpoints:
    if variant.ngram or variant.step_tokens:
        raise Unavailable(
            f"it needs vLLM set in a way of its own ({variant.label}), and whether the servers that run "
            "already are set so can't be known"
        )
    if len(settings.endpoints) != settings.engines:
        raise Unavailable(
            f"{len(settings.endpoints)} servers are named, and all systems are to have {settings.engines} "
            f"engines; say --engines {len(settings.endpoints)}, or name as many with --endpoint"
        )
    model = settings.served_model or await first_model(settings.endpoints[0])
    return Endpoints(settings.endpoints, model)


@dataclass(slots=True)
class _Fleet:
    """Servers that several use, by turns or at once."""

    users: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)
    found: Endpoints | None = None


_fleets: dict[tuple[object, ...], _Fleet] = {}


@asynccontextmanager
async def _shared(variant: Variant, settings: Settings, say: Say) -> AsyncIterator[Endpoints]:
    key = (str(settings.folder), settings.engines, *engine_flags(variant, settings))
    fleet = _fleets.setdefault(key, _Fleet())
    fleet.users += 1
    try:
        async with fleet.lock:
            if fleet.found is None:
                fleet.found = await fleet.stack.enter_async_context(started(variant, settings, say))
        yield fleet.found
    finally:
        fleet.users -= 1
        if not fleet.users:
            del _fleets[key]
            await fleet.stack.aclose()


@asynccontextmanager
async def started(variant: Variant, settings: Settings, say: Say) -> AsyncIterator[Endpoints]:
    """As many servers as the settings have engines. What they log is in the settings' folder.

    They end with this process, however it ends.

    Raises:
        Unavailable: one of them ended, or was not ready in time.
    """
    ports = [free_port() for _ in range(settings.engines)]
    urls = tuple(f"http://127.0.0.1:{port}/v1" for port in ports)
    async with _children() as add:
        children = []
        for number, port in enumerate(ports, start=1):
            flags = ["--port", str(port), *engine_flags(variant, settings)]
            spec = Spec(
                f"vllm {variant.label} {number}",
                apart([sys.executable, "-m", PROGRAM, *flags]),
                stop_within_s=STOP_WITHIN_S,
            )
            children.append(await add(spec, settings))
        for child, url in zip(children, urls, strict=True):
            await _until_ready(child, url, say)
        model = await first_model(urls[0])
        yield Endpoints(urls, model, frozenset(child.pid for child in children))


@asynccontextmanager
async def _children() -> AsyncIterator[Callable[[Spec, Settings], Awaitable[Child]]]:
    """Starts processes, which are stopped at the end, with their own ones."""
    watchdog = await start_watchdog()
    children: list[Child] = []

    def tell(line: str) -> None:
        if watchdog.stdin is not None:
            watchdog.stdin.write(f"{line}\n".encode())

    async def add(spec: Spec, settings: Settings) -> Child:
        child = await Child.start(spec, settings.folder)
        tell(f"+{child.pid}")
        children.append(child)
        return child

    try:
        yield add
    finally:
        # Even when this is cancelled: nobody else knows of them.
        await _uninterrupted(_stop(children))
        for child in children:
            tell(f"-{child.pid}")
        await _uninterrupted(_end(watchdog))


async def _stop(children: list[Child]) -> None:
    await asyncio.gather(*(child.stop() for child in children))


async def _end(watchdog: asyncio.subprocess.Process) -> None:
    await watchdog.communicate(b"")


async def _uninterrupted(work: Awaitable[None]) -> None:
    """Does the work to its end; a cancellation is heeded only then."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


async def _until_ready(child: Child, url: str, say: Say) -> None:
    """Returns once it answers, and says each second what it is doing.

    Raises:
        Unavailable: it does not.
    """
    began = said = time.monotonic()
    async with httpx.AsyncClient(timeout=5, trust_env=False) as client:
        while not await _answers(client, url):
            now = time.monotonic()
            if child.ended.done():
                raise Unavailable(_why(child, describe_exit(child.ended.result())))
            if now - began > READY_WITHIN_S:
                raise Unavailable(_why(child, f"was not ready within {READY_WITHIN_S:g} s"))
            if now - said >= SAY_EACH_S:
                said = now
                say(f"{child.spec.name}: {_doing(child)} ({now - began:.0f} s)")
            # It tells nobody that it is ready; its end is noticed at once.
            await asyncio.wait({child.ended}, timeout=POLL_S)


async def _answers(client: httpx.AsyncClient, url: str) -> bool:
    with contextlib.suppress(httpx.HTTPError):
        return (await client.get(f"{url}/models")).is_success
    return False


def _lines(child: Child) -> list[str]:
    """What it logged last, without what is of no use here."""
    return [line for line in map(_bare, child.tail()) if line]


def _bare(line: str) -> str:
    for _ in range(4):
        line = _NOISE.sub("", line).strip()
    return line


def _doing(child: Child) -> str:
    lines = _lines(child)
    return lines[-1][:LINE_CHARS] if lines else "starting"


def _why(child: Child, what: str) -> str:
    """A line: what happened, the last error that it logged, and where the rest is."""
    lines = _lines(child)
    errors = [line for line in lines if "Error" in line]
    last = (errors or lines or ["it logged nothing"])[-1]
    return f"{child.spec.name} {what}: {last}; its log: {child.log}"
