"""What commands show to people: tables, states in colour, and texts that can do the terminal nothing."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

STYLES: Final = {
    "open": "cyan",
    "running": "cyan",
    "streaming": "cyan",
    "dispatched": "cyan",
    "ready": "green",
    "done": "green",
    "closed": "green",
    "failed": "red",
    "lost": "red",
    "expired": "red",
    "cancelled": "yellow",
    "draining": "yellow",
    "skipped": "yellow",
}
PIPED_COLUMNS: Final = 100_000
"""Of a line that goes to another program, nothing is cut off."""
_SHOWN_BARE: Final = {"\n", "\t"}
_CONTROL: Final = {"Cc", "Cs", "Zl", "Zp"}
# Marks that turn the direction of what follows, so that a text shows as another (Unicode TR 9).
_TURNS: Final = {
    "\u061c",
    "\u200e",
    "\u200f",
    *map(chr, range(0x202A, 0x202F)),
    *map(chr, range(0x2066, 0x206A)),
}


def console() -> Console:
    """Where people read. Colours and widths are the terminal's; another program gets plain, whole lines."""
    if sys.stdout.isatty():
        return Console(highlight=False, markup=False, emoji=False)
    return Console(highlight=False, markup=False, emoji=False, width=PIPED_COLUMNS)


def print_json(value: Any) -> None:
    """A value for another program."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=not is_unicode()) + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """A table without lines. A column whose name begins with `#` holds numbers."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for name in columns:
        table.add_column(
            name.removeprefix("#"), justify="right" if name.startswith("#") else "left", no_wrap=True
        )
    for row in rows:
        table.add_row(*(cell if isinstance(cell, Text) else Text(plain(str(cell))) for cell in row))
    screen = console()
    if screen.width == PIPED_COLUMNS:
        screen.width = 1 + screen.measure(table).maximum
    screen.print(table)


def state(name: str) -> Text:
    """A state in its colour."""
    return Text(name, STYLES.get(name, ""))


def plain(text: str) -> str:
    """A text that was generated, or named by anybody, as it may be shown: it moves no cursor, hides nothing.

    Control characters and marks of direction become visible: U+FFFD.
    """
    return "".join("\ufffd" if _does_something(char) else char for char in text)


def _does_something(char: str) -> bool:
    return char in _TURNS or (char not in _SHOWN_BARE and unicodedata.category(char) in _CONTROL)


def line_of(text: str, most: int) -> str:
    """The text in one line of `most` characters."""
    line = " ".join(plain(text).split())
    return line if len(line) <= most else line[: most - 1] + "…"


def clock(unix_ms: int) -> str:
    """A moment of the day, in local time."""
    return datetime.fromtimestamp(unix_ms / 1000).astimezone().strftime("%H:%M:%S.") + f"{unix_ms % 1000:03}"


def span(ms: float) -> str:
    """A length of time, in two units at the most."""
    seconds = max(ms, 0) / 1000
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def is_unicode() -> bool:
    """Whether what is written may hold any character."""
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
