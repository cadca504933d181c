"""Runs a Python program against a server.

Its sessions are known by their trace: the program inherits one by TRACEPARENT, as child processes do
(https://opentelemetry.io/docs/specs/otel/context/env-carriers/), and the SDK's requests carry it.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from parrot_cli.ps import pages
from parrot_cli.screen import plain, print_json, span
from parrot_cli.server import Server

PAGES: Final = 10
"""So many pages of sessions are looked through: a tenant may make others' meanwhile."""
NO_KEY: Final = "none"
"""OpenAI's client asks for a key even where the server doesn't."""


def run_program(server: Server, file: Path, arguments: Sequence[str], *, quiet: bool, as_json: bool) -> int:
    """Runs it to its end; its exit code, or 128 and the signal that ended it.

    Raises:
        CommandError: the server can't be asked.
    """
    before_ms = _newest_ms(server)
    trace_id = secrets.token_hex(16)
    code = _run([sys.executable, str(file), *arguments], _environment(server, trace_id), as_json=as_json)
    if not quiet or as_json:
        _report(_sessions_of(server, trace_id, before_ms), code, as_json=as_json)
    return code


def _environment(server: Server, trace_id: str) -> dict[str, str]:
    return {
        **os.environ,
        "PARROT_URL": server.url,
        "PARROT_API_KEY": server.api_key,
        # A key for elsewhere is not shown to this server.
        "OPENAI_BASE_URL": f"{server.url}/v1",
        "OPENAI_API_KEY": server.api_key or NO_KEY,
        "TRACEPARENT": f"00-{trace_id}-{secrets.token_hex(8)}-01",
    }


def _run(command: Sequence[str], environment: dict[str, str], *, as_json: bool) -> int:
    # Of a JSON report, nothing else may stand on stdout.
    stdout = sys.stderr if as_json else None
    program = subprocess.Popen(command, env=environment, stdout=stdout)
    # A terminal tells both of Ctrl-C: it is the program's to answer. Others tell this process alone.
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, lambda sent, _: program.send_signal(sent))
        code = program.wait()
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
    return code if code >= 0 else 128 - code


def _newest_ms(server: Server) -> int:
    """When the newest session was made, by the server's clock; this also finds out whether it answers."""
    found = server.get("/v1/sessions", limit=1)["sessions"]
    return int(found[0]["created_unix_ms"]) if found else 0


def _sessions_of(server: Server, trace_id: str, before_ms: int) -> list[dict[str, Any]]:
    """The sessions of a trace, the oldest first."""
    found: list[dict[str, Any]] = []
    for number, (page, _) in enumerate(pages(server), start=1):
        found += [session for session in page if session["trace_id"] == trace_id]
        if number == PAGES or (page and page[-1]["created_unix_ms"] < before_ms):
            break
    return found[::-1]


def _report(sessions: list[dict[str, Any]], code: int, *, as_json: bool) -> None:
    if as_json:
        print_json({"exit": code, "sessions": sessions})
        return
    for session in sessions:
        ended_ms = session["ended_unix_ms"]
        took = f", {span(ended_ms - session['created_unix_ms'])}" if ended_ms else ""
        label = f" {plain(session['label'])}" if session["label"] else ""
        calls = f"{session['calls_ended']} of {session['calls']} calls ended"
        sys.stderr.write(f"parrot run: {session['id']}{label}: {session['state']}, {calls}{took}\n")
