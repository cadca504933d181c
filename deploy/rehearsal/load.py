"""The clients: `python -m deploy.rehearsal.load URL` runs applications until its input ends, a line each.

Before that it runs each once, undisturbed: every later run must have the same values.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, Final

from deploy.rehearsal.applications import APPLICATIONS, Run, Wrong

from parrot.errors import ParrotError

NUMBERS: Final = 6
"""Of each application, so many different ones."""
THINK_S: Final = 0.3
LOST_AFTER_S: Final = 180.0
"""An application that takes longer is lost."""

Case = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a run. Times are of the day, in seconds.

    Attributes:
        error: why it is lost; empty: it is not.
    """

    kind: str
    number: int
    started: float
    ended: float
    first_text_s: float | None
    connections: int
    error: str


class Load:
    """Runs applications, so many at once."""

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._expected: dict[Case, list[str]] = {}
        self._stop = asyncio.Event()

    async def undisturbed(self) -> None:
        """Learns every case's values.

        Raises:
            Wrong, ParrotError: one has none.
        """
        for case in _cases():
            run = Run()
            await APPLICATIONS[case[0]](run, case[1])
            self._expected[case] = run.values

    async def run(self) -> None:
        """Runs until its input ends, and what runs then to its end."""
        order = count()
        async with asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(self._one_after_another(order))
            await asyncio.to_thread(sys.stdin.read)
            self._stop.set()

    async def _one_after_another(self, order: Iterator[int]) -> None:
        cases = _cases()
        while not self._stop.is_set():
            say(asdict(await self._once(cases[next(order) % len(cases)])))
            await asyncio.sleep(THINK_S)

    async def _once(self, case: Case) -> Record:
        kind, number = case
        started, run, error = time.time(), Run(), ""
        try:
            async with asyncio.timeout(LOST_AFTER_S):
                await APPLICATIONS[kind](run, number)
            if run.values != self._expected[case]:
                raise Wrong(f"it made {run.values}, and undisturbed {self._expected[case]}")
        except TimeoutError:
            error = f"it had not ended after {LOST_AFTER_S:g} s"
        except (ParrotError, Wrong) as found:
            error = f"{type(found).__name__}: {found}"
        return Record(kind, number, started, time.time(), run.first_text_s, run.connections, error)


def _cases() -> list[Case]:
    return [(kind, number) for number in range(NUMBERS) for kind in APPLICATIONS]


def say(line: dict[str, Any]) -> None:
    """Prints a line for the one who reads us."""
    print(json.dumps(line), flush=True)  # noqa: T201 - its output


async def _main(at_once: int) -> None:
    load = Load(at_once)
    await load.undisturbed()
    say({"event": "ready"})
    await load.run()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--at-once", type=int, default=6)
    arguments = parser.parse_args()
    os.environ["PARROT_URL"] = arguments.url
    asyncio.run(_main(arguments.at_once))


if __name__ == "__main__":
    main()
