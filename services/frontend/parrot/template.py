"""The grammar of prompt templates: one language for the SDK and for HTTP.

    template  = { text | hole | literal }
    hole      = "{{" blanks [ "input:" | "output:" ] name blanks "}}"
    literal   = "{{" blanks quote any text on one line quote blanks "}}"
    name      = letter or "_", then letters, digits and "_"      (ASCII; at most 200 characters)
    blanks    = { space | tab }
    quote     = "'" or '"', the same at both ends

- Single braces are plain text, and so is "}}" outside a hole: JSON needs no escaping.
- Of a run of "{", the last two open a hole: "{{{x}}}" is "{", the hole x, "}".
- A literal stands for the text between its quotes, whatever it is. A hole is shown to the model by
  writing {{'{{'}}name}}.
- Whatever else follows "{{" is an error, with its line and column.

A template is bound to the names declared for it (`bind`): every hole is declared, every declared
name has a hole, an output has one hole, an input may have several, no name is both, text or an input
comes before the first output and between two outputs, and there is at least one output.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Literal

from parrot.errors import PlaceholderError, TemplateError

Direction = Literal["input", "output"]

NAME_CHARS = 200
"""The longest name of a hole."""

_SHOWN_CHARS = 40
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_OPEN = re.compile(r"\{{2,}")
_HOLE = re.compile(rf"\{{\{{[ \t]*(?:(input|output):)?({_NAME})[ \t]*\}}\}}")
_LITERAL = re.compile(r"""\{\{[ \t]*(['"])(.*?)\1[ \t]*\}\}""")
_LITERAL_BRACES = "{{'{{'}}"


@dataclass(frozen=True, slots=True)
class Text:
    """Template text between holes, as the model will see it."""

    text: str


@dataclass(frozen=True, slots=True)
class Hole:
    """A place for a variable. `line` and `column` count from 1, in characters.

    `direction` is None when the template doesn't say it; after `bind` it always does.
    """

    name: str
    direction: Direction | None
    line: int
    column: int


Piece = Text | Hole


def literal(text: str) -> str:
    """A template that stands for exactly `text`, whatever it holds."""
    return text.replace("{{", _LITERAL_BRACES)


def parse(template: str) -> tuple[Piece, ...]:
    """The template's pieces in order; neighbouring text is one piece, and none is empty.

    Raises:
        TemplateError: "{{" opens neither a hole nor a literal.
    """
    pieces: list[Piece] = []
    texts: list[str] = []
    place = _Place(template)
    position = 0
    while (run := _OPEN.search(template, position)) is not None:
        start = run.end() - 2
        texts.append(template[position:start])
        if (quoted := _LITERAL.match(template, start)) is not None:
            texts.append(quoted[2])
            position = quoted.end()
            continue
        hole = _hole(template, start, place)
        _put_text(pieces, texts)
        pieces.append(hole)
        position = template.index("}}", start) + 2
    texts.append(template[position:])
    _put_text(pieces, texts)
    return tuple(pieces)


def bind(pieces: tuple[Piece, ...], inputs: Collection[str], outputs: Collection[str]) -> tuple[Piece, ...]:
    """The pieces with the direction of every hole, checked against the names declared.

    Raises:
        PlaceholderError: template and declarations do not agree; it has the name, and the line and
            column where there is a hole to point at.
    """
    both = sorted(set(inputs) & set(outputs))
    if both:
        raise PlaceholderError(f"{both[0]!r} is declared both as an input and as an output", name=both[0])
    bound = tuple(_directed(piece, inputs, outputs) if isinstance(piece, Hole) else piece for piece in pieces)
    holes = [piece for piece in bound if isinstance(piece, Hole)]
    named = {hole.name for hole in holes}
    for name in (*inputs, *outputs):
        if name not in named:
            raise PlaceholderError(
                f"{name!r} is declared, but the template has no hole {{{{{name}}}}}", name=name
            )
    _check_outputs(bound)
    return bound


class _Place:
    """Turns offsets, asked for in rising order, into lines and columns."""

    def __init__(self, template: str) -> None:
        self._template = template
        self._offset = 0
        self._line = 1
        self._line_end = -1

    def of(self, offset: int) -> tuple[int, int]:
        # Only what is new is looked at: a line may be megabytes long, and full of holes.
        self._line += self._template.count("\n", self._offset, offset)
        self._line_end = max(self._line_end, self._template.rfind("\n", self._offset, offset))
        self._offset = offset
        return self._line, offset - self._line_end


def _put_text(pieces: list[Piece], texts: list[str]) -> None:
    text = "".join(texts)
    texts.clear()
    if text:
        pieces.append(Text(text))


def _hole(template: str, start: int, place: _Place) -> Hole:
    line, column = place.of(start)
    match = _HOLE.match(template, start)
    if match is None:
        raise _malformed(template, start, line, column)
    if len(match[2]) > NAME_CHARS:
        raise TemplateError(
            f"the name of the hole at line {line}, column {column} is {len(match[2])} characters long; "
            f"the limit is {NAME_CHARS}",
            line=line,
            column=column,
        )
    direction: Direction | None = "input" if match[1] == "input" else "output" if match[1] else None
    return Hole(match[2], direction, line, column)


def _malformed(template: str, start: int, line: int, column: int) -> TemplateError:
    where = f"line {line}, column {column}"
    line_end = template.find("\n", start)
    rest = template[start + 2 : line_end if line_end >= 0 else len(template)]
    end = rest.find("}}")
    advice = (
        "a hole is {{name}}, {{input:name}} or {{output:name}}; "
        f"for literal braces write {_LITERAL_BRACES}"
    )
    if end < 0:
        return TemplateError(
            f"the hole opened at {where} is not closed on its line; {advice}", line=line, column=column
        )
    name = rest[:end].strip(" \t")
    shown = name if len(name) <= _SHOWN_CHARS else name[:_SHOWN_CHARS] + "…"
    return TemplateError(
        f"the hole at {where} {_complaint(name, shown)}; {advice}", line=line, column=column, name=shown
    )


def _complaint(name: str, shown: str) -> str:
    bare = name.removeprefix("input:").removeprefix("output:")
    if not bare.strip(" \t"):
        return "has no name"
    if re.match(r"\d", bare):
        return f"is named {shown!r}, and a name can't begin with a digit"
    return f"holds {shown!r}, which is no name (ASCII letters, digits and '_')"


def _directed(hole: Hole, inputs: Collection[str], outputs: Collection[str]) -> Hole:
    declared: Direction | None = (
        "input" if hole.name in inputs else "output" if hole.name in outputs else None
    )
    where = f"line {hole.line}, column {hole.column}"
    if declared is None:
        raise PlaceholderError(
            f"the hole {hole.name!r} at {where} is not declared; declare it, or write "
            f"{_LITERAL_BRACES}{hole.name}}}}} for that text itself",
            name=hole.name,
            line=hole.line,
            column=hole.column,
        )
    if hole.direction not in {None, declared}:
        raise PlaceholderError(
            f"{hole.name!r} is declared as an {declared}, and an {hole.direction} at {where}; "
            "a name is one or the other",
            name=hole.name,
            line=hole.line,
            column=hole.column,
        )
    return replace(hole, direction=declared)


def _check_outputs(pieces: tuple[Piece, ...]) -> None:
    seen: set[str] = set()
    before: Piece | None = None
    for piece in pieces:
        if isinstance(piece, Hole) and piece.direction == "output":
            problem = _output_problem(piece, before, seen)
            if problem:
                raise PlaceholderError(
                    f"the output {piece.name!r} at line {piece.line}, column {piece.column} {problem}",
                    name=piece.name,
                    line=piece.line,
                    column=piece.column,
                )
            seen.add(piece.name)
        before = piece
    if not seen:
        raise PlaceholderError("the template has no output, so there is nothing to generate")


def _output_problem(hole: Hole, before: Piece | None, seen: set[str]) -> str:
    if hole.name in seen:
        return "is there twice; an output is generated once"
    if before is None:
        return "comes first; put text or an input before it for the model to go on from"
    if isinstance(before, Hole) and before.direction == "output":
        return f"follows the output {before.name!r} directly; put text between them"
    return ""
