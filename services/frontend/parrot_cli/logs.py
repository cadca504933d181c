"""`parrot logs`: what happened in a session, and what its calls wrote."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.text import Text

from parrot.sse import Event
from parrot_cli.failing import reporting
from parrot_cli.following import events
from parrot_cli.log_entries import ENDS, Entry, history, is_item, made_by, of_event
from parrot_cli.screen import STYLES, clock, console, line_of, plain
from parrot_cli.server import DEFAULT_URL, ApiKey, AsJson, Server, SessionId, Url

CLIPPED: Final = 400
"""Characters of a text that are shown, unless all of it is wanted."""


def logs(
    session: SessionId,
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as things happen, until the session ends.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Show texts whole.")] = False,
    no_text: Annotated[bool, typer.Option("--no-text", help="Show no texts.")] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    as_json: AsJson = False,
) -> None:
    """Shows what happened in a session: its calls, where they ran, what they wrote, why they failed.

    With --json, each line is an object with unix_ms, kind (session, call, block, text), id, name, state
    and details.
    """
    with reporting("logs", as_json=as_json), Server(url, api_key) as server:
        session_id = server.session(session)
        log = _Log(server, session_id, _Lines(as_json=as_json, full=full), texts=not no_text)
        if follow:
            log.follow()
        else:
            log.so_far()


class _Lines:
    """Where entries are written, one a line."""

    def __init__(self, *, as_json: bool, full: bool) -> None:
        self._json = as_json
        self._full = full
        self._screen: Console = console()

    def write(self, entry: Entry) -> None:
        if self._json:
            sys.stdout.write(json.dumps(asdict(entry)) + "\n")
            sys.stdout.flush()
        elif entry.kind == "text":
            self._write_text(entry)
        else:
            self._screen.print(_line(entry), soft_wrap=True)

    def _write_text(self, entry: Entry) -> None:
        shown = plain(entry.details) if self._full else line_of(entry.details, CLIPPED)
        for line in shown.splitlines() or [""]:
            text = Text(f"              {plain(entry.name or entry.id)}: ", "dim")
            self._screen.print(text.append(line, "default"), soft_wrap=True)


class _Log:
    """One session's log."""

    def __init__(self, server: Server, session_id: str, lines: _Lines, *, texts: bool) -> None:
        self._server = server
        self._path = f"/v1/sessions/{session_id}"
        self._lines = lines
        self._texts = texts
        self._told: dict[str, str] = {}
        self._shown: set[str] = set()

    def so_far(self) -> None:
        """Writes what the graph tells."""
        session = self._server.get(self._path)
        made = made_by(session)
        for entry in history(session):
            self._told[entry.id] = entry.state
            self._lines.write(entry)
            if entry.state in ENDS:
                self._show_texts(made.get(entry.id, []))

    def follow(self) -> None:
        """Writes what happened, and then what happens, until the session has ended."""
        started = False
        for event in events(self._server, f"{self._path}/events"):
            if event.event == "snapshot":
                # What was before it is in the graph by now; what comes after it may be too.
                self.so_far()
                started = True
            elif started:
                self._tell(event)

    def _tell(self, event: Event) -> None:
        data = json.loads(event.data)
        entry = of_event(event.event, data, round(time.time() * 1000))
        told = self._told.get(entry.id, "") if entry is not None else ""
        # An event may be older than the graph that was looked at.
        if entry is not None and told != entry.state and told not in ENDS:
            self._told[entry.id] = entry.state
            self._lines.write(entry)
        if event.event == "variable" and data["state"] == "ready":
            self._show_texts([data])

    def _show_texts(self, variables: list[Mapping[str, Any]]) -> None:
        for variable in variables:
            made = variable["producer_call_id"] or variable["producer_block_id"]
            if not self._texts or not made or is_item(variable) or variable["id"] in self._shown:
                continue
            self._shown.add(variable["id"])
            found = self._server.get(f"{self._path}/variables/{variable['id']}", wait_s=0)
            ready_ms = found["ready_unix_ms"] or round(time.time() * 1000)
            self._lines.write(
                Entry(ready_ms, "text", found["id"], found["name"], found["state"], found["value"] or "")
            )


def _line(entry: Entry) -> Text:
    line = Text(clock(entry.unix_ms), "dim")
    line.append(f"  {entry.id}", "bold")
    line.append(f" {line_of(entry.name, 60)}" if entry.name else "")
    line.append(f"  {entry.state}", STYLES.get(entry.state, ""))
    return line.append(f"  {plain(entry.details)}" if entry.details else "")
