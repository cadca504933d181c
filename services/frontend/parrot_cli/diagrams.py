"""A graph in the languages of other programs: DOT (Graphviz) and Mermaid."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from parrot_cli.graphs import Graph, Node, counted
from parrot_cli.screen import plain

_COLOURS: Final = {
    "done": "#d7f0d7",
    "failed": "#f5c6c6",
    "cancelled": "#f5e9c6",
    "skipped": "#f5e9c6",
    "running": "#cfe8f7",
    "dispatched": "#cfe8f7",
}
_REST: Final = "#eeeeee"
_SHAPES: Final = {"call": "box", "map": "box3d", "loop": "octagon", "select": "diamond"}


def dot(graph: Graph, title: str) -> str:
    """The graph for Graphviz: nodes are calls and blocks, edges are variables."""
    lines = [f"digraph {_quoted(title)} {{", '  node [style=filled, fontname="sans-serif"];']
    lines += [
        f"  {_quoted(_given(name))} [label={_quoted(text)}, shape=note];" for name, text in _sorted(graph)
    ]
    for node in graph.nodes:
        colour, shape = colour_of(node), _SHAPES.get(node.kind, "box")
        label = _quoted("\n".join(words_of(node)))
        lines.append(f"  {_quoted(node.ids[0])} [label={label}, shape={shape}, fillcolor={_quoted(colour)}];")
    for source, target, name in _edges(graph):
        lines.append(f"  {_quoted(source)} -> {_quoted(target)} [label={_quoted(name)}];")
    return "\n".join([*lines, "}"]) + "\n"


def mermaid(graph: Graph) -> str:
    """The graph as a Mermaid flow chart. Ids are numbered: Mermaid takes some words for its own."""
    names = {node.ids[0]: f"n{place}" for place, node in enumerate(graph.nodes)}
    names |= {_given(name): f"g{place}" for place, (name, _) in enumerate(_sorted(graph))}
    lines = ["flowchart TD"]
    lines += [f'  {names[_given(name)]}[/"{_entities(text)}"/]' for name, text in _sorted(graph)]
    for node in graph.nodes:
        label = "<br/>".join(map(_entities, words_of(node)))
        opening, closing = ("[", "]") if node.kind == "call" else ("[[", "]]")
        lines.append(f'  {names[node.ids[0]]}{opening}"{label}"{closing}')
        lines.append(f"  style {names[node.ids[0]]} fill:{colour_of(node)}")
    for source, target, name in _edges(graph):
        lines.append(f'  {names[source]} -->|"{_entities(name)}"| {names[target]}')
    return "\n".join(lines) + "\n"


def words_of(node: Node) -> list[str]:
    """What is written in a node, line by line."""
    what = node.name or node.kind
    states = ", ".join(name if count == 1 else f"{count} {name}" for name, count in counted(node.states))
    kind = "" if node.kind == "call" else f" ({node.kind} of {len(node.members)} calls)"
    return [plain(f"{what}{kind}"), f"{node.ids[0]}: {states}"]


def colour_of(node: Node) -> str:
    """The colour of the worst of its states."""
    for name, colour in (("failed", _COLOURS["failed"]), *_COLOURS.items()):
        if name in node.states:
            return colour
    return _REST


def _edges(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Source, target and what the target calls the variable."""
    makers = {variable: node.ids[0] for node in graph.nodes for _, variable in node.outputs}
    for node in graph.nodes:
        for name, variable in dict.fromkeys(node.inputs):
            if variable in makers:
                yield makers[variable], node.ids[0], plain(name)
            elif variable in graph.given:
                yield _given(variable), node.ids[0], plain(name)


def _sorted(graph: Graph) -> list[tuple[str, str]]:
    return [(name, plain(text)) for name, text in sorted(graph.given.items())]


def _given(variable_id: str) -> str:
    # No call's id and no block's has a colon.
    return f"given:{variable_id}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def _entities(text: str) -> str:
    """Text as Mermaid reads it within quotes."""
    return "".join(char if char.isalnum() or char in " _-.,:()/" else f"#{ord(char)};" for char in text)
