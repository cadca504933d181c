"""How a command follows a stream of events to its end, over as many connections as it takes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Final

from parrot.sse import Event, Parser
from parrot_cli.failing import REFUSED, UNREACHABLE, CommandError
from parrot_cli.server import Server, problem_line

SILENCE_S: Final = 30.0
"""Twice what a server may be silent on a stream."""
RECONNECT_S: Final = 0.5
TOO_MANY: Final = 429
GIVE_UP_S: Final = 30.0
"""A server that tells nothing for so long after a connection broke is given up."""


def events(server: Server, path: str) -> Iterator[Event]:
    """The events at a path; the last is `done`, or the `error` that tells how a variable ended.

    Raises:
        CommandError: the server refused, says that it can't go on, or can't be reached.
    """
    last_id = ""
    give_up_at: float | None = None
    while True:
        began_at = time.monotonic()
        try:
            with server.stream(path, last_id, SILENCE_S) as chunks:
                parser = Parser()
                for chunk in chunks:
                    if time.monotonic() > began_at + GIVE_UP_S:
                        # A connection that lasts is one, though nothing happens.
                        give_up_at = None
                    for event in parser.feed(chunk):
                        last_id = event.id or last_id
                        if event.event == "error" and _passes(event):
                            continue
                        give_up_at = None
                        yield event
                        if event.event in {"done", "error"}:
                            return
            broke = CommandError("the stream breaks off again and again, and tells nothing", UNREACHABLE)
        except CommandError as error:
            if error.code != UNREACHABLE and error.problem.get("status") != TOO_MANY:
                raise
            broke = error
        now = time.monotonic()
        # From the first break on: until then there was a connection.
        give_up_at = give_up_at if give_up_at is not None else now + GIVE_UP_S
        if now > give_up_at:
            raise broke
        # A server that comes back tells nobody, and is not to be met by all who lost it at once.
        time.sleep(RECONNECT_S)


def _passes(event: Event) -> bool:
    """Whether it is the stream that broke, and not what it tells of that failed.

    Raises:
        CommandError: the server says that it can't go on.
    """
    problem = json.loads(event.data)
    if problem.get("state") in {"failed", "cancelled"}:
        return False
    if problem.get("status", 500) < 500 and problem["status"] != TOO_MANY:
        raise CommandError(problem_line(problem), REFUSED, problem)
    return True
