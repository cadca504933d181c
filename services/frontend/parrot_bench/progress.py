"""How far a benchmark is, on stderr: on a terminal in a line that changes, elsewhere in lines."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from parrot_bench.figures import Round, metrics

QUIET_S: Final = 10.0
"""Where no line can change, what is waited for is said once in so long."""


class Progress:
    """Tells of a run."""

    def __init__(self, turns: int) -> None:
        """`turns`: rounds, times systems."""
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = Status("", console=self._console) if self._console.is_terminal else None
        self._turns = turns
        self._turn = 0
        self._said_s = time.monotonic()

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def begin(self, system: str, number: int) -> None:
        """A system's turn in a round has come."""
        self._turn += 1
        self.say(f"{system}, round {number + 1}")

    def say(self, text: str) -> None:
        """What is waited for."""
        line = escape(f"{self._turn}/{self._turns}  {text.strip()}")
        if self._status is not None:
            self._status.update(line)
        elif time.monotonic() - self._said_s >= QUIET_S:
            self._print(line)

    def say_once(self, text: str) -> None:
        """What stays to be read."""
        self._print(escape(text))

    def end(self, played: Round) -> None:
        """A turn is over."""
        found = metrics(played)
        times = [
            f"{name.removesuffix('_ms')} {value:,.0f} ms" for name, value in found.items() if "_ms" in name
        ]
        failed = f"{len(played.errors)} FAILED: {played.errors[0]}" if played.errors else ""
        line = f"{self._turn}/{self._turns}  {played.system}, round {played.number + 1}: "
        self._print(escape(line + (failed or ", ".join(times))))

    def lost(self, system: str, reason: str) -> None:
        """A system takes no further part."""
        self._print(escape(f"{self._turn}/{self._turns}  {system} can't be measured: {reason}"))

    def _print(self, line: str) -> None:
        self._said_s = time.monotonic()
        self._console.print(line, soft_wrap=True)
