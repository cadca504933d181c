"""Runs a graph that is written down: the body of a request for calls, its variables given as arguments."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from parrot_cli.failing import FAILED, INTERRUPTED, CommandError, wrong_use
from parrot_cli.following import events
from parrot_cli.graphs import graph_of
from parrot_cli.screen import plain, print_json
from parrot_cli.server import Server, problem_line

OF_BATCHES: Final = ("calls", "blocks", "variables")
"""What a body has that is no call alone."""
LABEL_CHARS: Final = 200


def run_graph(server: Server, file: Path, arguments: Sequence[str], *, quiet: bool, as_json: bool) -> int:
    """Runs it in a session of its own and prints its results; 1 when one of them failed.

    Raises:
        CommandError: the file or an argument can't be used, or the server can't or would not.
    """
    # Whoever ends this command ends its session with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    body = _with_values(_read(file), arguments)
    with _session(server, plain(file.stem)[:LABEL_CHARS]) as session_id:
        if not quiet:
            sys.stderr.write(f"parrot run: session {session_id}\n")
        try:
            server.post(f"/v1/sessions/{session_id}/calls", body)
            return _print_results(server, session_id, as_json=as_json)
        except KeyboardInterrupt:
            return INTERRUPTED


@contextmanager
def _session(server: Server, label: str) -> Iterator[str]:
    """A session of this command alone, which goes with it."""
    session_id: str = server.post("/v1/sessions", {"label": label})["id"]
    try:
        yield session_id
    except BaseException:
        # What went wrong first is what is told.
        with suppress(CommandError):
            server.delete(f"/v1/sessions/{session_id}")
        raise
    server.delete(f"/v1/sessions/{session_id}")


def _read(file: Path) -> dict[str, Any]:
    try:
        body = json.loads(file.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        wrong_use(f"{file}: {error}")
    except (json.JSONDecodeError, RecursionError) as error:
        wrong_use(f"{file} is no JSON: {error}")
    if not isinstance(body, dict):
        wrong_use(f'{file}: a graph is a JSON object, such as {{"calls": [...]}}')
    # A call alone stands for a list of it, as in the HTTP API.
    return body if any(member in body for member in OF_BATCHES) else {"calls": [body]}


def _with_values(body: dict[str, Any], arguments: Sequence[str]) -> dict[str, Any]:
    """The body with the variables that the arguments give; they come before those of the file."""
    given = dict(_value_of(argument) for argument in arguments)
    if not given:
        return body
    stays = [
        variable
        for variable in body.get("variables", [])
        if not (isinstance(variable, dict) and variable.get("semantic_var_id") in given)
    ]
    new = [{"semantic_var_id": name, "name": name, "value": value} for name, value in given.items()]
    return {**body, "variables": [*stays, *new]}


def _value_of(argument: str) -> tuple[str, str]:
    name, equals, value = argument.partition("=")
    if not equals or not name:
        wrong_use(f"{argument!r}: a graph's arguments look like NAME=TEXT or NAME=@FILE")
    if not value.startswith("@"):
        return name, value
    try:
        return name, Path(value[1:]).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        wrong_use(f"{argument}: {error}")


def _results_of(session: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the graph makes and nothing in it reads: ids, each with its name. Instances' are their block's.

    Where several have one name, the id stands for it.
    """
    graph = graph_of(session)
    read = {variable for node in graph.nodes for variable in node.reads}
    instances = {
        edge["semantic_var_id"] for call in session["calls"] if call["block_id"] for edge in call["outputs"]
    }
    made = [
        (variable, name)
        for node in graph.nodes
        for name, variable in node.outputs
        if variable not in read and variable not in instances
    ]
    times = Counter(name for _, name in made)
    return [(variable, name if times[name] == 1 else variable) for variable, name in made]


def _print_results(server: Server, session_id: str, *, as_json: bool) -> int:
    path = f"/v1/sessions/{session_id}"
    results = _results_of(server.get(path))
    outputs: dict[str, str] = {}
    errors: dict[str, Any] = {}
    for variable, name in results:
        text, problem = _follow(
            server, f"{path}/variables/{variable}", _heading(name, results), as_json=as_json
        )
        if problem is None:
            outputs[name] = text
        else:
            errors[name] = problem
    if as_json:
        print_json({"session_id": session_id, "outputs": outputs, "errors": errors})
    return FAILED if errors else 0


def _heading(name: str, results: Sequence[object]) -> str:
    """What stands above a result; one that is alone has the output for itself."""
    return f"== {plain(name)} ==\n" if len(results) > 1 else ""


def _follow(server: Server, path: str, heading: str, *, as_json: bool) -> tuple[str, dict[str, Any] | None]:
    """Prints a variable as it is written, unless it is to stand in JSON; its text, or its problem."""
    if not as_json:
        sys.stdout.write(heading)
    text = ""
    for event in events(server, f"{path}/stream"):
        data = json.loads(event.data)
        if event.event == "delta":
            text += data["text"]
            _show(data["text"], as_json=as_json)
        elif event.event == "error":
            sys.stderr.write("" if as_json else f"parrot run: {plain(problem_line(data))}\n")
            return text, data
    _show("\n", as_json=as_json)
    return text, None


def _show(text: str, *, as_json: bool) -> None:
    if not as_json:
        # To another program it goes as it is; a terminal is not to be moved by it.
        sys.stdout.write(plain(text) if sys.stdout.isatty() else text)
        sys.stdout.flush()
