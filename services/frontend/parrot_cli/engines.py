"""`parrot engines`: what serves the models."""

from __future__ import annotations

from typing import Any

from parrot_cli.failing import reporting
from parrot_cli.screen import print_json, print_table, state
from parrot_cli.server import DEFAULT_URL, ApiKey, AsJson, Server, Url


def engines(url: Url = DEFAULT_URL, api_key: ApiKey = "", *, as_json: AsJson = False) -> None:
    """Lists the engines, what each serves and how much of it is in use."""
    with reporting("engines", as_json=as_json), Server(url, api_key) as server:
        found = server.get("/v1/engines")
        if as_json:
            print_json(found)
        else:
            columns = ["ENGINE", "MODEL", "STATE", "#RUNNING", "BACKEND", "DTYPE", "ATTENTION"]
            print_table(columns, (_row(engine) for engine in found["engines"]))


def _row(engine: dict[str, Any]) -> list[object]:
    return [
        engine["id"],
        engine["model"],
        state(engine["state"]),
        f"{engine['running']}/{engine['capacity']}",
        f"{engine['backend']} {engine['backend_version']}".rstrip(),
        engine["dtype"],
        engine["attention"],
    ]
