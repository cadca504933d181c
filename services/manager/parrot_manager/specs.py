"""What a call's spec says: the pieces of its prompt, and what the core is told of them.

A spec is a serialized `manager.v1.NewCall`. Its holes are matched with the call's edges by their order
and not by their ids, for the instances of a block's body share one spec.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Final

from parrot_manager.core.conditions import Condition, Predicate
from parrot_manager.core.model import Edge, NativeKind
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
NATIVE_TIMEOUT_MS: Final = 60_000
TURN_TOKENS: Final = 5
"""What a chat's format has in front of a message, about."""


def pieces_of(spec: bytes) -> list[common_pb2.Segment]:
    """The segments that become operations: none without any text, and none behind the last output."""
    segments = manager_pb2.NewCall.FromString(spec).segments
    found = [segment for segment in segments if _says_something(segment)]
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
            shape.append(_constant_piece(segment))
    return tuple(shape)


def roles_of(pieces: Sequence[common_pb2.Segment]) -> list[str]:
    """The roles of a chat's messages, without the assistant's that its outputs stand in; none: no chat."""
    return [piece.turn.role for piece in pieces if piece.HasField("turn")][:-1]


def when_of(spec: bytes) -> Condition | None:
    """What must hold for the call to run; None: nothing."""
    call = manager_pb2.NewCall.FromString(spec)
    return condition_of(call.when) if call.HasField("when") else None


def native_of(message: manager_pb2.NewCall) -> tuple[NativeKind | None, int]:
    """Who runs a call's code, and how long it waits for a worker of the client, in ms."""
    if not message.HasField("native"):
        return None, 0
    if message.native.HasField("sandbox"):
        return NativeKind.SANDBOX, 0
    return NativeKind.CLIENT, message.native.client.timeout_ms or NATIVE_TIMEOUT_MS


def condition_of(message: manager_pb2.Condition) -> Condition:
    """A condition as the core has it; one without a test holds where the value is not empty."""
    kind = message.WhichOneof("test")
    test = Predicate(kind) if kind is not None else Predicate.EMPTY
    asked: bool | str = getattr(message, test.value)
    operand, turned = (asked, False) if isinstance(asked, str) else ("", not asked)
    transforms = tuple(message.transforms)
    return Condition(message.variable_id, test, operand, transforms, negate=message.negate != turned)


def _says_something(segment: common_pb2.Segment) -> bool:
    kind = segment.WhichOneof("piece")
    if kind == "tokens":
        return bool(segment.tokens.ids)
    return kind is not None and (kind not in {"text", "plain"} or bool(getattr(segment, kind)))


def _constant_piece(segment: common_pb2.Segment) -> TextPiece:
    tokens = 0
    kind = segment.WhichOneof("piece") or ""
    if kind == "tokens":
        data, tokens = array("I", segment.tokens.ids).tobytes(), len(segment.tokens.ids)
    elif kind == "turn":
        data, tokens = segment.turn.role.encode(), TURN_TOKENS
    else:
        data = str(getattr(segment, kind)).encode()
    # The same characters as template text and as plain text are other tokens.
    digest = hashlib.blake2b(data, digest_size=DIGEST_BYTES, person=kind.encode()).digest()
    return TextPiece(digest, tokens or max(1, len(data) // CHARS_PER_TOKEN), segment.private)
