"""`parrot ps`: the sessions there are."""

from __future__ import annotations

import time
from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from parrot_cli.failing import reporting
from parrot_cli.screen import print_json, print_table, span, state
from parrot_cli.server import DEFAULT_URL, ApiKey, AsJson, Server, Url

PAGE: Final = 200


class State(StrEnum):
    """A session's."""

    OPEN = "open"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


def ps(
    *,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Ended sessions too, for as long as they are kept.")
    ] = False,
    only: Annotated[State | None, typer.Option("--state", help="Only sessions in this state.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="So many of them at the most.")] = 50,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    as_json: AsJson = False,
) -> None:
    """Lists sessions, the newest first: by default those that are open."""
    wanted = only or (None if everything else State.OPEN)
    with reporting("ps", as_json=as_json), Server(url, api_key) as server:
        found, more = _newest(server, wanted, limit)
        if as_json:
            print_json({"sessions": found})
            return
        print_table(
            ["SESSION", "STATE", "#CALLS", "#AGE", "#TOOK", "LABEL"], (_row(session) for session in found)
        )
        if more:
            typer.echo(f"(the newest {len(found)}; --limit shows more)", err=True)


def _newest(server: Server, wanted: State | None, limit: int) -> tuple[list[dict[str, Any]], bool]:
    """The newest sessions, and whether there are more."""
    found: list[dict[str, Any]] = []
    for page, more in pages(server, wanted, min(limit, PAGE)):
        found += page
        if len(found) >= limit:
            return found[:limit], more or len(found) > limit
    return found, False


def pages(
    server: Server, wanted: State | None = None, size: int = PAGE
) -> Iterator[tuple[list[dict[str, Any]], bool]]:
    """Pages of sessions, the newest first, each with whether another follows."""
    query: dict[str, str | float] = {"limit": size}
    if wanted is not None:
        query["state"] = wanted.value
    while True:
        page = server.get("/v1/sessions", **query)
        yield page["sessions"], page["next"] is not None
        if page["next"] is None:
            return
        query["after"] = page["next"]


def _row(session: dict[str, Any]) -> list[object]:
    now_ms = time.time() * 1000
    created_ms, ended_ms = session["created_unix_ms"], session["ended_unix_ms"]
    return [
        session["id"],
        state(session["state"]),
        f"{session['calls_ended']}/{session['calls']}",
        span(now_ms - created_ms),
        "" if ended_ms is None else span(ended_ms - created_ms),
        session["label"],
    ]
