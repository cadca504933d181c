"""`parrot trace`: where a session's time went, and what would have saved some of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Final

import typer
from rich.text import Text

from parrot_cli.failing import reporting
from parrot_cli.screen import PIPED_COLUMNS, STYLES, console, is_unicode, plain, print_json, print_table, span
from parrot_cli.server import DEFAULT_URL, ApiKey, AsJson, Server, SessionId, Url
from parrot_cli.waterfall import COLOURS, LETTERS, rows_of

MOST_ROWS: Final = 40
PIPED_BAR: Final = 120
WHAT_IFS: Final = 5
_ASCII: Final = str.maketrans("▏▕", "||")


def trace(
    session: SessionId,
    *,
    every_call: Annotated[
        bool,
        typer.Option("--all", "-a", help="A line for every call; else those that held it up come first."),
    ] = False,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = "",
    as_json: AsJson = False,
) -> None:
    """Tells where a session's time went: its critical path, stage by stage, and what would shorten it."""
    with reporting("trace", as_json=as_json), Server(url, api_key) as server:
        found = server.get(f"/v1/sessions/{server.session(session)}/trace")
        if as_json:
            print_json(found)
        else:
            _draw(found, every_call=every_call)


def _draw(found: Mapping[str, Any], *, every_call: bool) -> None:
    screen = console()
    columns = PIPED_BAR if screen.width == PIPED_COLUMNS else screen.width
    for line in lines_of(found, columns, every_call=every_call):
        if not is_unicode():
            line.plain = line.plain.translate(_ASCII)
        screen.print(line, no_wrap=True, overflow="ellipsis", crop=True)
    screen.print()
    print_table(["", "STAGE", "#MS", "#SHARE"], map(_stage_row, found["stages"]))
    for line in what_ifs_of(found):
        screen.print(line)


def lines_of(found: Mapping[str, Any], columns: int, *, every_call: bool = False) -> Iterator[Text]:
    """A session's title and its calls' bars, in lines of a terminal."""
    yield _title(found)
    shown = chosen(found["calls"], len(found["calls"]) if every_call else MOST_ROWS)
    yield from rows_of(found, shown, columns)
    if left := len(found["calls"]) - len(shown):
        yield Text(f"and {left} more calls; --all shows them", "dim")


def chosen(calls: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """The calls that are shown, in their order: those that held the session up longest, then any others."""
    ranked = sorted(calls, key=lambda call: -call["on_path_ms"])[:most]
    kept = {call["id"] for call in ranked}
    return [call for call in calls if call["id"] in kept]


def what_ifs_of(found: Mapping[str, Any]) -> Iterator[Text]:
    """What would have been without a stage, a line each."""
    worth = [one for one in found["what_if"] if one["change"] <= -0.005][:WHAT_IFS]
    if worth:
        yield Text()
    for one in worth:
        name = words_of(one["without"])
        yield Text(f"if {name} were free: {one['change']:+.0%} ({span(one['total_ms'])})".replace("%", " %"))


def words_of(stage: str) -> str:
    """A stage's name as people write it."""
    return {"inputs": "waiting for inputs", "client": "the client"}.get(stage, stage.replace("_", " "))


def _stage_row(one: Mapping[str, Any]) -> tuple[object, ...]:
    stage = one["stage"]
    letter = Text(LETTERS.get(stage, "?").upper(), COLOURS.get(stage, ""))
    return letter, words_of(stage), f"{one['ms']:,.1f}", f"{one['share']:.1%}".replace("%", " %")


def _title(found: Mapping[str, Any]) -> Text:
    line = Text(found["session_id"], "bold")
    line.append("  ")
    line.append(found["state"], STYLES.get(found["state"], ""))
    if found["label"]:
        line.append(f"  {plain(found['label'])}")
    line.append(f"  {span(found['total_ms'])}{'' if found['complete'] else ' so far'}", "dim")
    return line
