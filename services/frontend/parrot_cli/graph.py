"""`parrot graph`: what depends on what, and how far it has come."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from parrot_cli import diagrams, lanes
from parrot_cli.failing import reporting, wrong_use
from parrot_cli.graphs import Graph, Node, counted, graph_of, grouped
from parrot_cli.screen import STYLES, console, is_unicode, line_of, plain, print_json, span
from parrot_cli.server import DEFAULT_URL, ApiKey, AsJson, Server, SessionId, Url, problem_line

SIGNS: Final = {
    "failed": "✗",
    "cancelled": "⊘",
    "skipped": "⊘",
    "running": "◐",
    "dispatched": "◐",
    "done": "●",
}
WAITS: Final = "○"
_ASCII_SIGNS: Final = str.maketrans("✗⊘◐●○→…", "x-~*o>.")
FAILURES: Final = 5


def graph(
    session: SessionId,
    *,
    dot: Annotated[bool, typer.Option("--dot", help="Print it for Graphviz.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print it as a Mermaid flow chart.")] = False,
    every_call: Annotated[
        bool, typer.Option("--all", "-a", help="A line for every call; else one for calls that are alike.")
    ] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    as_json: AsJson = False,
) -> None:
    """Draws a session's graph: calls and blocks, a line each, and how what they make runs between them."""
    with reporting("graph", as_json=as_json), Server(url, api_key) as server:
        if dot + mermaid + as_json > 1:
            wrong_use("--dot, --mermaid and --json: choose one")
        found = server.get(f"/v1/sessions/{server.session(session)}")
        if as_json:
            print_json(found)
        elif dot:
            sys.stdout.write(diagrams.dot(graph_of(found), found["id"]))
        elif mermaid:
            sys.stdout.write(diagrams.mermaid(graph_of(found)))
        else:
            _draw(found, graph_of(found) if every_call else grouped(graph_of(found)))


def _draw(session: Mapping[str, Any], drawing: Graph) -> None:
    screen = console()
    for line in lines_of(session, drawing):
        if not is_unicode():
            line.plain = lanes.in_ascii(line.plain).translate(_ASCII_SIGNS)
        screen.print(line, no_wrap=True, overflow="ellipsis", crop=True)


def lines_of(session: Mapping[str, Any], drawing: Graph) -> Iterator[Text]:
    """A session's graph in lines for people."""
    yield _title(session)
    for row in lanes.drawn(drawing.producers):
        if row.node is None:
            yield Text(row.lines.rstrip(), "dim")
            continue
        node = drawing.nodes[row.node]
        at = 2 * row.column
        line = Text(row.lines[:at], "dim")
        line.append(sign_of(node), STYLES.get(_worst(node), ""))
        line.append(row.lines[at + 1 :], "dim")
        yield line.append_text(words_of(node))
    yield from _failures(session)


def sign_of(node: Node) -> str:
    """The mark of the worst of its states."""
    return SIGNS.get(_worst(node), WAITS)


def words_of(node: Node) -> Text:
    """What stands beside a node: its name, how far it has come, what it cost."""
    name = line_of(node.name, 48) or node.kind
    many = f" x{len(node.ids)}" if len(node.ids) > 1 else ""
    line = Text(f"{name}{many}  ", "bold")
    line.append_text(_states(node))
    line.append("  ".join(["", *_facts(node)]), "dim")
    return line


def _states(node: Node) -> Text:
    line = Text()
    for state, count in counted(node.states):
        line.append(", " if line else "")
        line.append(f"{count} {state}" if len(node.ids) > 1 else state, STYLES.get(state, ""))
    return line


def _facts(node: Node) -> list[str]:
    facts = [node.ids[0] if len(node.ids) == 1 else f"{node.ids[0]}…{node.ids[-1]}"]
    if node.kind != "call":
        over = sum(call["ended_unix_ms"] is not None for call in node.members)
        facts.append(f"{node.kind} of {len(node.members)} calls, {over} over")
    prompt = sum(call["usage"]["prompt_tokens"] for call in node.members)
    output = sum(call["usage"]["output_tokens"] for call in node.members)
    if prompt or output:
        facts.append(f"{prompt:,}→{output:,} tokens")
    begun = [call["dispatched_unix_ms"] for call in node.members if call["dispatched_unix_ms"]]
    over_ms = [call["ended_unix_ms"] for call in node.members if call["ended_unix_ms"]]
    if begun and len(over_ms) == len(node.members):
        facts.append(span(max(over_ms) - min(begun)))
    engines = sorted({call["engine"] for call in node.members if call["engine"]})
    facts += [" ".join(engines)] if engines else []
    return facts


def _worst(node: Node) -> str:
    order = ["failed", "running", "dispatched", "ready", "waiting", "accepted", "skipped", "cancelled"]
    return next((state for state in order if state in node.states), "done")


def _title(session: Mapping[str, Any]) -> Text:
    line = Text(session["id"], "bold")
    line.append("  ")
    line.append(session["state"], STYLES.get(session["state"], ""))
    if session["label"]:
        line.append(f"  {plain(session['label'])}")
    if session["ended_unix_ms"] is not None:
        line.append(f"  {span(session['ended_unix_ms'] - session['created_unix_ms'])}", "dim")
    return line


def _failures(session: Mapping[str, Any]) -> Iterator[Text]:
    """Where failures began; what only follows from them is not repeated."""
    nodes = [*session["calls"], *session["blocks"]]
    failed = [node for node in nodes if node["state"] == "failed" and node["error"]]
    roots = [node for node in failed if not node["error"].get("cause_type")] or failed
    for node in roots[:FAILURES]:
        yield Text(f"✗ {node['id']} {plain(node['name'])}: {plain(problem_line(node['error']))}", "red")
    if len(roots) > FAILURES:
        yield Text(f"  and {len(roots) - FAILURES} more", "red")
