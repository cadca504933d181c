"""What one tenant has does not exist for another, whichever way it asks."""

from __future__ import annotations

import pytest
from tests.support.attack import Attack
from typer.testing import CliRunner

from parrot_cli.main import app

pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("kind", ["read", "list", "write", "cancel", "end", "stream", "events"])
def test_what_another_tenant_has_is_not_there(attack: Attack, kind: str) -> None:
    theirs, ours = attack.victim.things["session_id"], attack.attacker.http
    session = f"/v1/sessions/{theirs}"
    body = {"prompt": "a {{out}}", "placeholders": [{"name": "out", "in_out": "out"}]}
    answers = {
        "read": lambda: ours.get(session),
        "list": lambda: ours.get("/v1/sessions", params={"after": f"9999999999999-{theirs}"}),
        "write": lambda: ours.post(f"{session}/calls", json=body),
        "cancel": lambda: ours.post(f"{session}/calls/c-1/cancel"),
        "end": lambda: ours.delete(session),
        "stream": lambda: ours.get(f"{session}/variables/out/stream"),
        "events": lambda: ours.get(f"{session}/events"),
    }
    answer = answers[kind]()
    if kind == "list":
        assert theirs not in answer.text
    else:
        assert answer.status_code == 404
        nowhere = ours.get("/v1/sessions/s00-0000000000000000").json()
        # Nor does the refusal tell that there is something.
        assert answer.json()["type"] == nowhere["type"]
    assert attack.victim.graph()["state"] == "open"


@pytest.mark.parametrize("command", [["ps", "--all"], ["graph"], ["logs"], ["cancel"]])
def test_the_command_reaches_what_its_key_may_reach(attack: Attack, command: list[str]) -> None:
    theirs = attack.victim.things["session_id"]
    key = attack.attacker.headers["Authorization"].removeprefix("Bearer ")
    arguments = command if command[0] == "ps" else [*command, theirs]
    done = CliRunner().invoke(app, [*arguments, "--url", attack.url, "--api-key", key])
    assert theirs not in done.stdout
    assert done.exit_code == (0 if command[0] == "ps" else 4)
    for wrong in ("pk-000000000000-wrong", ""):
        refused = CliRunner().invoke(app, [*arguments, "--url", attack.url, "--api-key", wrong])
        assert refused.exit_code == 4
        assert "unauthenticated" in refused.stderr
