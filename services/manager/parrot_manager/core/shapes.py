"""A call's prompt as the core sees it: pieces without their text, and the hashes of its prefixes."""

from __future__ import annotations

from dataclasses import dataclass

CHARS_PER_TOKEN = 4
"""Of English text, about; a prior until an engine has counted."""


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Constant text: a digest of it, and about how many tokens it is; `private`: one tenant's own."""

    digest: bytes
    tokens: int
    private: bool = False


@dataclass(frozen=True, slots=True)
class InputPiece:
    """A variable's value, transformed."""

    variable_id: str
    transforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """Where the call generates. `max_tokens` 0: what the window leaves."""

    variable_id: str
    max_tokens: int = 0


Piece = TextPiece | InputPiece | OutputPiece
Shape = tuple[Piece, ...]

UNBOUNDED_TOKENS = 1024
"""What is reckoned for an output that has no `max_tokens`, and for an input nobody knows the length of."""


def own_tokens(shape: Shape) -> int:
    """The tokens of a prompt's text, and the most its outputs may have."""
    texts = sum(piece.tokens for piece in shape if isinstance(piece, TextPiece))
    made = [piece.max_tokens or UNBOUNDED_TOKENS for piece in shape if isinstance(piece, OutputPiece)]
    return texts + sum(made)
