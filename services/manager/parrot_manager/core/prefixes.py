"""`prefix_hash` at every boundary of a prompt's pieces: what calls have in common.

A hash is chained over the template's text and over its variables: their value where it is known, their
identity while it is pending, so that calls that will share find each other before the text exists. The
tenant enters with the first variable or text of its own, and not before: tenants share templates, never
what is filled in. The model does not enter: an engine has one, and a context is looked for on one engine
at a time, so a call that takes any model shares with those that name it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from parrot_manager.core.model import Variable, VariableState
from parrot_manager.core.shapes import CHARS_PER_TOKEN, InputPiece, OutputPiece, Shape, TextPiece

HASH_BYTES: Final = 16
_START: Final = b"parrot-prefix-1"


@dataclass(frozen=True, slots=True)
class Prefix:
    """The first pieces of a prompt.

    Attributes:
        pieces: how many.
        hash: the same for the same content; 32 hex digits.
        tokens: about how many, all pieces together.
        public: template text alone.
        complete: every variable in it has its value.
    """

    pieces: int
    hash: str
    tokens: int
    public: bool
    complete: bool


def prefixes(
    tenant: str, session_id: str, shape: Shape, variables: Mapping[str, Variable]
) -> tuple[Prefix, ...]:
    """The prompt's prefixes, shortest first, up to its first output.

    What follows an output follows tokens that were generated, which may be others than its text's:
    nothing is shared beyond.
    """
    found: list[Prefix] = []
    chain, tokens, public, complete = _START, 0, True, True
    for number, piece in enumerate(shape, 1):
        if isinstance(piece, OutputPiece):
            break
        if public and not (isinstance(piece, TextPiece) and not piece.private):
            chain = _digest(chain, b"tenant", tenant.encode())
            public = False
        if isinstance(piece, TextPiece):
            chain = _digest(chain, b"text", piece.digest)
            tokens += piece.tokens
        else:
            variable = variables[piece.variable_id]
            chain = _digest(chain, *_of_variable(session_id, piece, variable))
            complete = complete and _has_value(variable)
            tokens += variable.size_bytes // CHARS_PER_TOKEN
        found.append(Prefix(number, chain.hex(), tokens, public, complete))
    return tuple(found)


def _has_value(variable: Variable) -> bool:
    return variable.state is VariableState.READY and bool(variable.value_digest)


def _of_variable(session_id: str, piece: InputPiece, variable: Variable) -> Iterable[bytes]:
    if _has_value(variable):
        yield b"value"
        yield variable.value_digest
    else:
        yield b"variable"
        yield session_id.encode()
        yield variable.id.encode()
    for transform in piece.transforms:
        yield transform.encode()


def _digest(*parts: bytes) -> bytes:
    """Of parts, each with its length, so that no two lists of parts are alike."""
    made = hashlib.blake2b(digest_size=HASH_BYTES)
    for part in parts:
        made.update(len(part).to_bytes(8, "big"))
        made.update(part)
    return made.digest()
