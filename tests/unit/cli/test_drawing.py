"""A graph is drawn so that every edge can be followed, and nothing in it moves the terminal."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_cli import diagrams, lanes
from parrot_cli.graph import lines_of
from parrot_cli.graphs import graph_of, grouped
from parrot_cli.screen import line_of, plain, span


def call(
    number: int, name: str, reads: list[str], makes: list[str], state: str = "done", **fields: Any
) -> dict[str, Any]:
    """A call as the server tells of it."""
    ended = 2_000 if state in {"done", "failed", "cancelled"} else None
    return {
        "id": f"c-{number}",
        "name": name,
        "state": state,
        "inputs": [{"name": variable, "semantic_var_id": variable} for variable in reads],
        "outputs": [{"name": variable, "semantic_var_id": variable} for variable in makes],
        "error": None,
        "engine": "e-1",
        "attempt": 1,
        "placement": "",
        "block_id": "",
        "usage": {"prompt_tokens": 10, "cached_tokens": 0, "output_tokens": 5},
        "accepted_unix_ms": 500,
        "dispatched_unix_ms": 1_000,
        "ended_unix_ms": ended,
        **fields,
    }


def session(calls: list[dict[str, Any]], *given_ids: str, **fields: Any) -> dict[str, Any]:
    """A session that has these calls, and variables that the client set."""
    variables = [
        {"id": name, "name": name, "producer_call_id": "", "producer_block_id": "", "state": "ready"}
        for name in given_ids
    ]
    made = {"id": "s00-1", "label": "", "state": "open", "created_unix_ms": 0, "ended_unix_ms": None}
    return {**made, "calls": calls, "variables": variables, "blocks": [], **fields}


def drawing(found: dict[str, Any], *, every_call: bool = False) -> list[str]:
    """The lines below the title."""
    graph = graph_of(found)
    return [line.plain.rstrip() for line in lines_of(found, graph if every_call else grouped(graph))][1:]


def test_a_chain_is_one_line_down() -> None:
    calls = [call(n, f"f{n}", [f"v{n - 1}"] if n > 1 else [], [f"v{n}"]) for n in (1, 2, 3)]
    assert [line.split("  ")[0] for line in drawing(session(calls))] == ["● f1", "● f2", "● f3"]


def test_map_reduce_shows_two_nodes_and_every_call_when_asked() -> None:
    maps = [call(n, "part", ["text"], [f"s{n}"]) for n in range(1, 5)]
    found = session([*maps, call(5, "all", [f"s{n}" for n in range(1, 5)], ["out"], "waiting")], "text")
    assert drawing(found) == [
        "● part x4  4 done  c-1…c-4  40→20 tokens  1.00 s  e-1",
        "○ all  waiting  c-5  10→5 tokens  e-1",
    ]
    whole = [line.split("  ")[0].rstrip() for line in drawing(found, every_call=True)]
    assert whole == ["● part", "│ ● part", "│ │ ● part", "│ │ │ ● part", "├─┴─┴─╯", "○ all"]


def test_a_lane_that_is_crossed_is_not_broken() -> None:
    calls = [
        call(1, "a", [], ["a"]),
        call(2, "b", [], ["b"]),
        call(3, "c", ["a"], ["c"]),
        call(4, "d", ["a", "c"], ["d"]),
        call(5, "e", ["b", "d"], ["e"]),
    ]
    assert [line.split("  ")[0].rstrip() for line in drawing(session(calls), every_call=True)] == [
        "● a",
        "│ ● b",
        "├─│─╮",
        "│ │ ● c",
        "├─│─╯",
        "● │ d",
        "├─╯",
        "● e",
    ]


def test_neighbours_that_have_nothing_to_do_with_one_another_stand_apart() -> None:
    found = session([call(1, "a", [], ["a"]), call(2, "b", [], ["b"])])
    assert [line.split("  ")[0] for line in drawing(found)] == ["● a", "", "● b"]


def test_failures_are_told_where_they_began() -> None:
    root = {"type": "urn:parrot:problem:engine_error", "detail": "it broke"}
    follows = {**root, "cause_type": "urn:parrot:problem:engine_error"}
    found = session(
        [call(1, "f", [], ["x"], "failed", error=root), call(2, "g", ["x"], [], "failed", error=follows)]
    )
    assert drawing(found)[-1] == "✗ c-1 f: engine_error: it broke"
    assert sum(line.startswith("✗ c-") for line in drawing(found)) == 1


def test_a_block_stands_for_its_instances_and_what_they_make() -> None:
    block = {
        "id": "b-2",
        "name": "each",
        "kind": "map",
        "state": "running",
        "inputs": [{"name": "list", "semantic_var_id": "items"}],
        "outputs": [{"name": "all", "semantic_var_id": "all"}],
        "error": None,
    }
    instances = [call(n, "one", [f"b-2-{n}-item"], [f"b-2-{n}-out"], block_id="b-2") for n in (3, 4)]
    reader = call(9, "peek", ["b-2-3-out"], [], "waiting")
    found = session([call(1, "list", [], ["items"]), *instances, reader], blocks=[block])
    assert [line.split("  ")[0] for line in drawing(found)] == ["● list", "◐ each", "○ peek"]
    assert "map of 2 calls, 2 over" in drawing(found)[1]


def test_names_and_texts_do_the_terminal_nothing() -> None:
    assert plain("a\x1b[2Jb\r\x00c\u202ed\n\te") == "a\ufffd[2Jb\ufffd\ufffdc\ufffdd\n\te"
    assert plain("👩\u200d👩\u200d👧 naïve 漢") == "👩\u200d👩\u200d👧 naïve 漢"
    found = session([call(1, "\x1b]0;owned\x07[bold]x[/bold]", [], ["v"])])
    assert "\x1b" not in drawing(found)[0]
    assert "[bold]x[/bold]" in drawing(found)[0]


def test_dot_and_mermaid_take_any_name() -> None:
    name = 'say "hi"\\ ]; end #1 <b>'
    found = session([call(1, name, ["given"], ["v"]), call(2, "g", ["v"], [])], "given")
    dot = diagrams.dot(graph_of(found), found["id"])
    assert '"c-1" [label="say \\"hi\\"\\\\ ]; end #1 <b>\\nc-1: done"' in dot
    assert '"given:given" -> "c-1" [label="given"];' in dot
    assert '"c-1" -> "c-2" [label="v"];' in dot
    mermaid = diagrams.mermaid(graph_of(found))
    assert 'n0["say #34;hi#34;#92; #93;#59; end #35;1 #60;b#62;<br/>c-1: done"]' in mermaid
    assert 'g0 -->|"given"| n0' in mermaid
    assert 'n0 -->|"v"| n1' in mermaid


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0.00 s"),
        (-5, "0.00 s"),
        (9_990, "9.99 s"),
        (61_000, "61.0 s"),
        (100_000, "1 min 40 s"),
        (3_700_000, "1 h 1 min"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_a_length_of_time_has_two_units_at_the_most(ms: float, text: str) -> None:
    assert span(ms) == text


def test_a_line_is_cut_and_says_so() -> None:
    assert line_of("one\n two\tthree", 9) == "one two …"
    assert line_of("short", 9) == "short"


@st.composite
def graphs(draw: st.DrawFn) -> list[list[int]]:
    """Producers by node, each before its node."""
    count = draw(st.integers(1, 12))
    return [
        sorted(draw(st.sets(st.integers(0, node - 1), max_size=4))) if node else [] for node in range(count)
    ]


@given(graphs())
def test_every_node_is_drawn_once_below_all_it_reads(producers: list[list[int]]) -> None:
    rows = list(lanes.drawn(producers))
    assert [row.node for row in rows if row.node is not None] == list(range(len(producers)))
    assert followed(rows) == producers


@given(graphs())
def test_it_can_be_drawn_without_lines_of_unicode(producers: list[list[int]]) -> None:
    assert all(lanes.in_ascii(row.lines).isascii() for row in lanes.drawn(producers))


UPWARD = set("│╯╰┤├┴┼")
DOWNWARD = set("│╮╭┤├┬┼")
LEFTWARD = set("─╯╮┤┴┬┼")
RIGHTWARD = set("─╰╭├┴┬┼")


def followed(rows: list[lanes.Row]) -> list[list[int]]:
    """Producers by node, read from the drawing alone: along the lines, as a person would."""
    owners: dict[int, int] = {}
    found: list[list[int]] = []
    joined: dict[int, set[int]] = {}
    for row in rows:
        cells = dict(enumerate(row.lines[::2]))
        if row.node is None:
            owners, joined = bent(cells, owners)
            continue
        sources = joined.get(row.column, {owners[row.column]} if row.column in owners else set())
        found.append(sorted(sources))
        owners = {column: owner for column, owner in owners.items() if cells.get(column) in DOWNWARD}
        owners[row.column] = row.node
        joined = {}
    return found


def bent(cells: dict[int, str], owners: dict[int, int]) -> tuple[dict[int, int], dict[int, set[int]]]:
    """Whose lanes go on below a line that bends some, and which come together on it."""
    linked = [column for column, cell in cells.items() if cell in LEFTWARD or cell in RIGHTWARD]
    sources = {owners[column] for column in linked if cells[column] in UPWARD and column in owners}
    below = {column: owner for column, owner in owners.items() if cells.get(column) in DOWNWARD}
    ends = [column for column in linked if cells[column] in DOWNWARD]
    return below, dict.fromkeys(ends, sources)
