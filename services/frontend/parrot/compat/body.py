"""What the prototype's functions are made of: parameters, and a body of constants and places for them."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Literal

from parrot.errors import PlaceholderError
from parrot.sampling import SamplingConfig
from parrot.template import literal
from parrot.typed import TEXT, OutputType

REQUIRED: Final = object()
"""The default of an input that has none."""

ModelType = Literal["token_id", "text"]

# The prototype's own grammar, in which blanks make literal text of a hole, and the paper's directions.
_HOLE: Final = re.compile(r"\{\{(?:(input|output):)?([a-zA-Z_][a-zA-Z0-9_]*)\}\}")


class ParamType(Enum):
    """What a parameter is: a variable that is read, one that is made, or any Python object."""

    INPUT_LOC = 0
    OUTPUT_LOC = 1
    INPUT_PYOBJ = 2


@dataclass(frozen=True, slots=True)
class DispatchAnnotation:
    """What a call asked of the engine it goes to. Accepted, and without effect: the server places calls
    by what the whole graph needs.

    Attributes:
        requests_num_upperbound: how many requests its engine may have.
        tokens_num_upperbound: how many tokens.
        ddl_requirement: seconds.
    """

    requests_num_upperbound: int = 256
    tokens_num_upperbound: int = 2048
    ddl_requirement: float = 0.0


@dataclass(slots=True)
class Parameter:
    """A parameter of a function.

    Attributes:
        sampling_config: of an output; by default `SamplingConfig()`.
        dispatch_annotation: accepted, and without effect.
        transforms: what is done to its text, as this SDK has it.
        output_type: the type of an output, as this SDK has it.
        default: what an input is when a call leaves it out; `REQUIRED`: it can't.
    """

    name: str
    typ: ParamType
    sampling_config: SamplingConfig | None = None
    dispatch_annotation: object = None
    transforms: tuple[str, ...] = ()
    output_type: OutputType = TEXT
    default: Any = REQUIRED

    @property
    def is_input_loc(self) -> bool:
        """Whether it is a variable that is read."""
        return self.typ is ParamType.INPUT_LOC

    @property
    def is_output(self) -> bool:
        """Whether it is a variable that is made."""
        return self.typ is ParamType.OUTPUT_LOC

    def sampling(self) -> dict[str, Any]:
        """How an output is generated, as the server takes it."""
        wire = (self.sampling_config or SamplingConfig()).to_wire()
        if self.output_type.guide is not None and not self.transforms:
            wire.setdefault("guide", self.output_type.guide.to_wire())
        return wire

    def get_param_str(self) -> str:
        """Its hole, as templates have it."""
        return "{{" + self.name + "}}"


@dataclass(slots=True)
class FuncBodyPiece:
    """A piece of a body; `idx` is its place there."""

    idx: int


@dataclass(slots=True)
class Constant(FuncBodyPiece):
    """Text."""

    text: str


@dataclass(slots=True)
class ParameterLoc(FuncBodyPiece):
    """A place of a parameter."""

    param: Parameter


Piece = Constant | ParameterLoc
Body = list[Piece]


def parse_body(text: str, params: Mapping[str, Parameter], *, remove_pure_fill: bool) -> Body:
    """The pieces of a template; `remove_pure_fill` leaves out what follows the last output.

    Raises:
        PlaceholderError: a hole is no parameter's, or contradicts it.
    """
    body: Body = []
    last = 0
    for match in _HOLE.finditer(text):
        _add_text(body, text[last : match.start()])
        body.append(ParameterLoc(len(body), _declared(match, params)))
        last = match.end()
    _add_text(body, text[last:])
    return up_to_last_output(body) if remove_pure_fill else body


def up_to_last_output(body: Sequence[Piece]) -> Body:
    """A body without what follows its last output; empty, if it has none."""
    return list(body[: max((place + 1 for place, piece in enumerate(body) if is_output(piece)), default=0)])


def is_output(piece: Piece) -> bool:
    """Whether a piece is an output's place."""
    return isinstance(piece, ParameterLoc) and piece.param.is_output


def piece_text(piece: Piece) -> str:
    """A piece as the prototype's templates have it."""
    return piece.text if isinstance(piece, Constant) else piece.param.get_param_str()


def check_body(body: Sequence[Piece], outputs: Collection[str]) -> None:
    """Refuses what could never be generated.

    Args:
        outputs: the names of those that are declared.

    Raises:
        PlaceholderError: an output comes first, twice, right after another, or nowhere.
    """
    seen: set[str] = set()
    before: Piece | None = None
    for piece in body:
        if isinstance(piece, Constant) and not piece.text:
            continue
        if isinstance(piece, ParameterLoc) and piece.param.is_output:
            problem = _problem(piece.param.name, before, seen)
            if problem:
                raise PlaceholderError(f"the output {piece.param.name!r} {problem}", name=piece.param.name)
            seen.add(piece.param.name)
        before = piece
    for missing in (output for output in outputs if output not in seen):
        raise PlaceholderError(
            f"the output {missing!r} has no place in the template; write {{{{{missing}}}}} there",
            name=missing,
        )


def template_of(pieces: Sequence[str | Parameter]) -> str:
    """Texts and places as a template of this SDK's grammar, in which the texts stand for themselves."""
    parts: list[str] = []
    text = ""
    for piece in pieces:
        if isinstance(piece, str):
            text += piece
        else:
            # Braces may meet where texts do.
            parts += [literal(text), piece.get_param_str()]
            text = ""
    return "".join([*parts, literal(text)])


def _add_text(body: Body, text: str) -> None:
    if text:
        body.append(Constant(len(body), text))


def _declared(match: re.Match[str], params: Mapping[str, Parameter]) -> Parameter:
    direction, name = match[1], match[2]
    param = params.get(name)
    if param is None:
        raise PlaceholderError(
            f"Parse failed: {name} is not defined. Declare it as a parameter, or write {{{{ {name} }}}} for "
            "the text itself",
            name=name,
        )
    if direction is not None and (direction == "output") != param.is_output:
        raise PlaceholderError(f"{name!r} is declared the other way than {match[0]} says", name=name)
    return param


def _problem(name: str, before: Piece | None, seen: Collection[str]) -> str:
    if name in seen:
        return "is there twice; an output is generated once"
    if before is None:
        return "comes first; put text or an input before it for the model to go on from"
    if is_output(before):
        return "follows another output directly; put text between them"
    return ""
