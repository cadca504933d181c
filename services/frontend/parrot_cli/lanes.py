"""Draws a graph in text, a node a line, as `git log --graph` draws history.

What a node makes runs down a lane, until its last reader was drawn. Between two nodes a line shows how
lanes bend to the next one; a lane that is only crossed is not broken.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
_LINES: Final = {
    0: " ",
    UP | DOWN: "│",
    LEFT | RIGHT: "─",
    UP | LEFT: "╯",
    UP | RIGHT: "╰",
    DOWN | LEFT: "╮",
    DOWN | RIGHT: "╭",
    UP | DOWN | LEFT: "┤",
    UP | DOWN | RIGHT: "├",
    UP | LEFT | RIGHT: "┴",
    DOWN | LEFT | RIGHT: "┬",
    UP | DOWN | LEFT | RIGHT: "┼",
}
_ASCII: Final = str.maketrans("│─╯╰╮╭┤├┴┬┼", "|-''..|++++")


@dataclass(frozen=True, slots=True)
class Row:
    """A line: what is left of the text, and which node stands on it, if any, at which column."""

    lines: str
    node: int | None = None
    column: int = 0


@dataclass(slots=True)
class _Lanes:
    """Which node's outputs run down which column."""

    owners: list[int | None] = field(default_factory=list)

    def column_of(self, node: int) -> int:
        return self.owners.index(node)

    def take(self, node: int, column: int | None) -> int:
        """Gives a node a column: that one, or the first that is free."""
        if column is None:
            column = self.owners.index(None) if None in self.owners else len(self.owners)
        self.owners += [None] * (column + 1 - len(self.owners))
        self.owners[column] = node
        return column

    def free(self, column: int) -> None:
        self.owners[column] = None
        while self.owners and self.owners[-1] is None:
            self.owners.pop()

    def active(self) -> set[int]:
        return {column for column, owner in enumerate(self.owners) if owner is not None}


def drawn(producers: Sequence[Sequence[int]]) -> Iterator[Row]:
    """The lines of a graph whose nodes stand in the order in which they can run.

    Args:
        producers: by node, the nodes it reads from; they come before it.
    """
    readers = [0] * len(producers)
    for sources in producers:
        for source in sources:
            readers[source] += 1
    lanes = _Lanes()
    over: int | None = None
    for node, sources in enumerate(producers):
        inputs = sorted(lanes.column_of(source) for source in sources)
        for source in sources:
            readers[source] -= 1
        ending = [column for column in inputs if readers[lanes.owners[column] or 0] == 0]
        before = lanes.active()
        for column in ending:
            lanes.free(column)
        column = lanes.take(node, ending[0] if ending else None)
        if inputs and inputs != [column]:
            yield Row(_bend(before, lanes.active(), inputs, column))
        elif not inputs and column == over:
            # Right below one that it has nothing to do with, it would seem to read from it.
            yield Row(_passing(before))
        yield Row(_passing(lanes.active()), node, column)
        over = None if readers[node] else column
        if not readers[node]:
            lanes.free(column)


def in_ascii(lines: str) -> str:
    """The same, for a terminal that knows no other characters."""
    return lines.translate(_ASCII)


def _passing(active: set[int]) -> str:
    """A line on which nothing bends."""
    return "".join("│ " if lane in active else "  " for lane in range(max(active, default=-1) + 1))


def _bend(above: set[int], below: set[int], inputs: Sequence[int], column: int) -> str:
    """The line between two nodes: from the inputs' lanes to the column of the one that reads them."""
    first, last = min(*inputs, column), max(*inputs, column)
    cells: list[str] = []
    for lane in range(max(last, *above, *below) + 1):
        joins = lane in inputs or lane == column
        bits = (UP if lane in above else 0) | (DOWN if lane in below else 0)
        if first <= lane <= last and (joins or not bits):
            bits |= (LEFT if lane > first else 0) | (RIGHT if lane < last else 0)
        cells.append(_LINES[bits])
        cells.append("─" if first <= lane < last else " ")
    return "".join(cells)
