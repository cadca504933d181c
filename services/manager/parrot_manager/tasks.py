"""Tasks that outlive the request that began them, each owned by one group."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Answer(asyncio.Future[T]):
    """What a request waits for; nobody has to."""

    def give(self, value: T) -> None:
        """Answers, unless that was done."""
        if not self.done():
            self.set_result(value)

    def refuse(self, error: Exception) -> None:
        """Answers with an error, unless an answer was given."""
        if not self.done():
            self.set_exception(error)
            # Whoever asked may have gone.
            self.exception()


class Tasks:
    """The manager's tasks. One that fails unexpectedly ends the manager."""

    def __init__(self, group: asyncio.TaskGroup) -> None:
        self._group = group
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Starts a task of its own."""
        task = self._group.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def answered(self, work: Callable[[Answer[T]], Coroutine[Any, Any, None]], name: str) -> T:
        """The answer of work that goes on whether or not the asker still waits."""
        answer: Answer[T] = Answer()
        self.spawn(_answering(answer, work(answer)), name)
        return await asyncio.shield(answer)

    def cancel_all(self) -> None:
        """Ends what still runs."""
        for task in list(self._running):
            task.cancel()


async def _answering(answer: Answer[T], work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001 - it is the asker's, whose interceptor logs it
        answer.refuse(error)
    finally:
        answer.cancel()
