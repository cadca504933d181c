"""Programs of the prototype: how they are run, and what they use."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """What a machine's session uses.

    Attributes:
        num_total_tokens: of the prompts and outputs of its calls so far.
        num_threads: its calls that have not ended.
    """

    num_total_tokens: int
    num_threads: int


def run(program: Callable[..., Any], args: Sequence[Any]) -> None:
    """Runs a program, a function or a coroutine function, to its end.

    A coroutine function gets a loop of its own; where one runs already, such as a notebook's, beside it.

    Raises:
        What the program raises.
    """
    if not inspect.iscoroutinefunction(program):
        program(*args)
        return
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        asyncio.run(program(*args))
        return
    errors: list[BaseException] = []
    context = contextvars.copy_context()

    def beside() -> None:
        try:
            context.run(asyncio.run, program(*args))
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=beside, name="parrot-program", daemon=True)
    thread.start()
    thread.join()
    for error in errors:
        raise error
