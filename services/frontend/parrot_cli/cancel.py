"""`parrot cancel`: ends a session, or calls of it."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import quote

import typer

from parrot_cli.failing import reporting, wrong_use
from parrot_cli.screen import print_json
from parrot_cli.server import DEFAULT_URL, ApiKey, AsJson, Server, SessionId, Url


def cancel(
    session: SessionId,
    calls: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CALL]...", help="Calls or blocks of it; none: the whole session."),
    ] = None,
    *,
    subtree: Annotated[
        bool, typer.Option("--subtree", help="Of calls: what only they need is cancelled too.")
    ] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    as_json: AsJson = False,
) -> None:
    """Cancels a session, or some calls of it and what depends on them. What has ended stays as it is."""
    with reporting("cancel", as_json=as_json), Server(url, api_key) as server:
        if subtree and not calls:
            wrong_use("--subtree is about calls; name some, or leave it out")
        session_id = server.session(session)
        if calls:
            _cancel_calls(server, session_id, calls, subtree=subtree, as_json=as_json)
        else:
            _cancel_session(server, session_id, as_json=as_json)


def _cancel_session(server: Server, session_id: str, *, as_json: bool) -> None:
    ended = server.delete(f"/v1/sessions/{session_id}")
    if as_json:
        print_json(ended)
    else:
        print(f"{ended['id']} {ended['state']}")


def _cancel_calls(server: Server, session_id: str, calls: list[str], *, subtree: bool, as_json: bool) -> None:
    cancelled: list[str] = []
    for call in calls:
        path = f"/v1/sessions/{session_id}/calls/{quote(call, safe='')}/cancel"
        cancelled += server.post(path, **({"subtree": "true"} if subtree else {}))["call_ids"]
    if as_json:
        print_json({"call_ids": cancelled})
    else:
        print("cancelled " + " ".join(cancelled) if cancelled else "nothing was left to cancel")
