"""What a call's spec says: the pieces of its prompt, and what the core is told of them.

A spec is a serialized `manager.v1.NewCall`. Its holes are matched with the call's edges by their order
and not by their ids, for the instances of a block's body share one spec.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Final

from parrot_manager.core.conditions import Condition, Predicate
from parrot_manager.core.model import Edge
from parrot_manager.core.shapes import (
    CHARS_PER_TOKEN,
    InputPiece,
    OutputPiece,
    Piece,
    Shape,
    TextPiece,
)
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2

DIGEST_BYTES: Final = 16


def pieces_of(spec: bytes) -> list[common_pb2.Segment]:
    """The segments that become operations: none without any text, and none behind the last output."""
    segments = manager_pb2.NewCall.FromString(spec).segments
    found = [segment for segment in segments if segment.WhichOneof("piece") and segment != _EMPTY]
    while found and not found[-1].HasField("output"):
        found.pop()
    return found


def shape_of(spec: bytes, inputs: Sequence[Edge], outputs: Sequence[Edge]) -> Shape:
    """The prompt's pieces, one for each of `pieces_of`; empty for an empty spec."""
    waiting_inputs, waiting_outputs = iter(inputs), iter(outputs)
    shape: list[Piece] = []
    for segment in pieces_of(spec):
        if segment.HasField("output"):
            hole = segment.output
            shape.append(OutputPiece(next(waiting_outputs).variable_id, hole.sampling.max_tokens))
        elif segment.HasField("input"):
            shape.append(InputPiece(next(waiting_inputs).variable_id, tuple(segment.input.transforms)))
        else:
            shape.append(_text_piece(segment.text))
    return tuple(shape)


def when_of(spec: bytes) -> Condition | None:
    """What must hold for the call to run; None: nothing."""
    call = manager_pb2.NewCall.FromString(spec)
    return condition_of(call.when) if call.HasField("when") else None


def condition_of(message: manager_pb2.Condition) -> Condition:
    """A condition as the core has it; one without a test holds where the value is not empty."""
    kind = message.WhichOneof("test")
    test = Predicate(kind) if kind is not None else Predicate.EMPTY
    asked: bool | str = getattr(message, test.value)
    operand, turned = (asked, False) if isinstance(asked, str) else ("", not asked)
    transforms = tuple(message.transforms)
    return Condition(message.variable_id, test, operand, transforms, negate=message.negate != turned)


def _text_piece(text: str) -> TextPiece:
    data = text.encode()
    digest = hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
    return TextPiece(digest, max(1, len(data) // CHARS_PER_TOKEN))


_EMPTY: Final = common_pb2.Segment(text="")
