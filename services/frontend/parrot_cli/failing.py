"""How a command says that it failed: one line that names what to mend, and an exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import typer

FAILED: Final = 1
"""What was asked for was done, and came out badly: an application that failed."""
WRONG_USE: Final = 2
UNREACHABLE: Final = 3
REFUSED: Final = 4
INTERRUPTED: Final = 130
PROBLEM: Final = "urn:parrot:problem:"


class CommandError(Exception):
    """A command can't go on.

    Attributes:
        code: the process's exit code.
        problem: the server's own words, where it was the server that refused.
    """

    def __init__(self, message: str, code: int, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.problem = problem or {"detail": message}


def wrong_use(message: str) -> NoReturn:
    """Ends a command whose arguments make no sense.

    Raises:
        CommandError: always.
    """
    raise CommandError(message, WRONG_USE)


@contextmanager
def reporting(command: str, *, as_json: bool) -> Iterator[None]:
    """Turns a `CommandError` inside into its line on stderr and its exit code.

    Raises:
        typer.Exit: with that code; with 130 after Ctrl-C.
    """
    try:
        yield
    except CommandError as error:
        line = json.dumps(error.problem) if as_json else f"parrot {command}: {error}"
        sys.stderr.write(line + "\n")
        raise typer.Exit(error.code) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read us has enough, as `| head` has. Nothing is left to be written at exit.
        sys.stdout = None
        raise typer.Exit(0) from None
