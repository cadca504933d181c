"""What happened in a session, entry by entry: out of its graph, and out of its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from parrot_cli.graphs import named
from parrot_cli.screen import span
from parrot_cli.server import problem_line

ENDS: Final = frozenset({"done", "failed", "cancelled", "closed", "expired"})


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened.

    Attributes:
        kind: session, call, block, or text: the value of a variable.
        state: what it came to; of a text, empty.
        details: for people, in a line; of a text, all of it.
    """

    unix_ms: int
    kind: str
    id: str
    name: str
    state: str
    details: str = ""


def history(session: Mapping[str, Any]) -> list[Entry]:
    """All that the graph tells of what happened, oldest first."""
    entries = [*_of_session(session)]
    for call in session["calls"]:
        entries += _of_call(call)
    for block in session["blocks"]:
        entries += _of_block(named(block, session["variables"]))
    return sorted(entries, key=lambda entry: entry.unix_ms)


def of_event(kind: str, data: Mapping[str, Any], unix_ms: int) -> Entry | None:
    """The entry of an event of the session's stream; None for what is no matter of a log."""
    if kind not in {"session", "call", "block"}:
        return None
    details = _why(data)
    if kind == "call" and data["state"] in {"dispatched", "running"} and data["engine"]:
        details = _where(data)
    return Entry(unix_ms, kind, data["id"], data.get("name", ""), data["state"], details)


def made_by(session: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """By call and by block: the variables it made that have a value."""
    made: dict[str, list[Mapping[str, Any]]] = {}
    for variable in session["variables"]:
        if variable["state"] == "ready" and not is_item(variable):
            maker = variable["producer_call_id"] or variable["producer_block_id"]
            made.setdefault(maker, []).append(variable)
    return made


def is_item(variable: Mapping[str, Any]) -> bool:
    """Whether it is what a block gave an instance: a part of its list, or of the round before."""
    block_id = variable["producer_block_id"]
    return bool(block_id) and variable["id"].startswith(f"{block_id}-")


def _of_session(session: Mapping[str, Any]) -> Iterator[Entry]:
    fields = ("session", session["id"], session["label"])
    yield Entry(session["created_unix_ms"], *fields, "open")
    if session["ended_unix_ms"] is not None:
        took = span(session["ended_unix_ms"] - session["created_unix_ms"])
        yield Entry(session["ended_unix_ms"], *fields, session["state"], f"after {took}")


def _of_call(call: Mapping[str, Any]) -> Iterator[Entry]:
    fields = ("call", call["id"], call["name"])
    yield Entry(call["accepted_unix_ms"], *fields, "accepted", _inputs(call))
    if call["dispatched_unix_ms"]:
        yield Entry(call["dispatched_unix_ms"], *fields, "dispatched", _where(call))
    if call["ended_unix_ms"]:
        yield Entry(call["ended_unix_ms"], *fields, call["state"], _why(call) or _cost(call))


def _of_block(block: Mapping[str, Any]) -> Iterator[Entry]:
    fields = ("block", block["id"], block["name"] or block["kind"])
    yield Entry(block["accepted_unix_ms"], *fields, "accepted", f"{block['kind']}; {_inputs(block)}")
    if block.get("unfolded_unix_ms"):
        yield Entry(block["unfolded_unix_ms"], *fields, "running")
    if block.get("ended_unix_ms"):
        details = _why(block) or f"of {block['instances']}"
        yield Entry(block["ended_unix_ms"], *fields, block["state"], details)


def _inputs(node: Mapping[str, Any]) -> str:
    names = dict.fromkeys(edge["name"] for edge in node["inputs"])
    return f"reads {', '.join(names)}" if names else "reads nothing"


def _where(call: Mapping[str, Any]) -> str:
    again = f", attempt {call['attempt']}" if call["attempt"] > 1 else ""
    reason = f" ({call['placement']})" if call.get("placement") else ""
    return f"on {call['engine']}{again}{reason}"


def _cost(call: Mapping[str, Any]) -> str:
    usage = call["usage"]
    cached = f" ({usage['cached_tokens']:,} cached)" if usage["cached_tokens"] else ""
    tokens = f"{usage['prompt_tokens']:,}{cached} → {usage['output_tokens']:,} tokens"
    since = call["dispatched_unix_ms"] or call["accepted_unix_ms"]
    return f"{tokens} in {span(call['ended_unix_ms'] - since)}"


def _why(node: Mapping[str, Any]) -> str:
    """Its failure, in words; empty when it has none."""
    error = node.get("error")
    return problem_line(error) if error else ""
