"""How a service process lives: it starts, says so, serves until told to stop, and stops in order."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Final

import structlog
import uvloop

from parrot_runtime import telemetry
from parrot_runtime.errors import Fault
from parrot_runtime.settings import ServiceSettings

COLLECT: Final = (5_000, 10, 50)
"""When garbage is looked for. 100,000 calls are a million objects that live long, and a look at all of them
keeps everything waiting."""

log = structlog.get_logger()


class Stop:
    """Set by the first SIGTERM or SIGINT. A second one ends the process at once.

    Until the service says that it has begun, there is nothing to finish: a stop then ends the start,
    whatever peer it waits for.
    """

    def __init__(self, on_begun: Callable[[], None] = lambda: None) -> None:
        """`on_begun`: is called once the service serves."""
        self._event = asyncio.Event()
        self._on_begun = on_begun
        self.has_begun = False

    def begun(self) -> None:
        """Says that the service serves: from here on a stop is its own to carry out."""
        self.has_begun = True
        self._on_begun()

    def set(self) -> None:
        """Asks the service to stop."""
        self._event.set()

    def is_set(self) -> bool:
        """Whether the service was asked to stop."""
        return self._event.is_set()

    async def wait(self) -> None:
        """Returns when the service is asked to stop."""
        await self._event.wait()


def run_service(
    service: str,
    settings: ServiceSettings,
    main: Callable[[Stop], Coroutine[None, None, None]],
    *,
    instance: str = "",
) -> None:
    """Runs `main` until it returns, and exits: 0, or 1 with one line that says why it could not go on.

    `main` starts everything, says `Stop.begun`, waits for the stop, and undoes what it started.
    """
    telemetry.setup_logging(settings, service)
    telemetry.setup_tracing(settings, service, instance)
    gc.set_threshold(*COLLECT)
    try:
        uvloop.run(_supervised(main))
    except Fault as fault:
        _exit_with(service, fault.message)
    except BaseExceptionGroup as group:
        faults = group.subgroup(Fault)
        if faults is None:
            raise
        _exit_with(service, "; ".join(_messages(faults)))
    finally:
        telemetry.shutdown_tracing()


def _settle_heap() -> None:
    """What is there once a service serves stays until it ends: garbage is not looked for in it again."""
    gc.collect()
    gc.freeze()


def _exit_with(service: str, message: str) -> None:
    log.error("stopped", reason=message)
    sys.stderr.write(f"parrot-{service}: {message}\n")
    raise SystemExit(1)


def _messages(group: BaseExceptionGroup[Fault]) -> list[str]:
    found: list[str] = []
    for error in group.exceptions:
        found += _messages(error) if isinstance(error, BaseExceptionGroup) else [error.message]
    return found


async def _supervised(main: Callable[[Stop], Coroutine[None, None, None]]) -> None:
    stop = Stop(_settle_heap)
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if stop.is_set():
            sys.stderr.write("stopped at once, at the second signal\n")
            sys.stderr.flush()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    serving = asyncio.create_task(main(stop), name="main")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    try:
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        if not stop.has_begun:
            serving.cancel()
        await serving
    except asyncio.CancelledError:
        if not stop.is_set():
            raise
    finally:
        stopping.cancel()
