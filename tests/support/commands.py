"""What tests of the `parrot` command share: how it is run, and sessions for it to show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import httpx
from typer.testing import CliRunner, Result

from parrot_cli.main import app

CHAIN: Final[dict[str, Any]] = {
    "calls": [
        {
            "name": "describe",
            "prompt": "About {{topic}}: {{text}}",
            "placeholders": [
                {"name": "topic", "in_out": "in", "semantic_var_id": "topic"},
                {"name": "text", "in_out": "out", "semantic_var_id": "text", "sampling": {"max_tokens": 12}},
            ],
        },
        {
            "name": "title",
            "prompt": "A title for {{text}} is {{title}}",
            "placeholders": [
                {"name": "text", "in_out": "in", "semantic_var_id": "text"},
                {"name": "title", "in_out": "out", "semantic_var_id": "title", "sampling": {"max_tokens": 6}},
            ],
        },
    ],
    "variables": [{"semantic_var_id": "topic", "name": "topic", "value": "the sea"}],
}
TOO_LONG: Final[dict[str, Any]] = {
    "calls": [
        {
            "name": "endless",
            "prompt": "{{text}}{{out}}",
            "placeholders": [
                {"name": "text", "in_out": "in", "value": "word " * 40_000},
                {"name": "out", "in_out": "out"},
            ],
        }
    ]
}
SLOW: Final[dict[str, Any]] = {"max_tokens": 4000, "ignore_eos": True}


def parrot(*arguments: str, code: int = 0) -> Result:
    """What a command said; it must end with this code."""
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, (result.output, result.exception)
    return result


def made(http: httpx.Client, label: str = "", body: dict[str, Any] | None = None) -> str:
    """A session, with calls if they are given."""
    session = http.post("/v1/sessions", json={"label": label}).json()["id"]
    if body is not None:
        assert http.post(f"/v1/sessions/{session}/calls", json=body).status_code == 201
    return str(session)


def finished(http: httpx.Client, session: str, *variables: str) -> dict[str, str]:
    """The values of variables, once they are there."""
    path = f"/v1/sessions/{session}/variables"
    return {name: http.get(f"{path}/{name}").json()["value"] for name in variables}


def lasting(max_tokens: dict[str, Any]) -> dict[str, Any]:
    """A call that runs until it is cancelled."""
    out = {"name": "out", "in_out": "out", "semantic_var_id": "out", "sampling": max_tokens}
    return {"name": "long", "prompt": "Go on: {{out}}", "placeholders": [out]}


def columns(line: str) -> Sequence[str]:
    """The cells of a table's line."""
    return line.split("  ")
