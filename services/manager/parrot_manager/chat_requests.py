"""The constant pieces of a call's prompt, and the shape of a chat."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from parrot_proto.common.v1 import common_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import too_large

ASSISTANT: Final = "assistant"
TOKEN_BYTES: Final = 4
"""What a token that is given by its number counts as."""

_ROLE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")


def constant_bytes(segment: common_pb2.Segment) -> int:
    """What a piece adds to its template's size."""
    kind = segment.WhichOneof("piece")
    if kind == "text":
        return len(segment.text.encode())
    if kind == "plain":
        return len(segment.plain.encode())
    return TOKEN_BYTES * len(segment.tokens.ids) if kind == "tokens" else 0


def check_chat(segments: Iterable[common_pb2.Segment], field: str) -> None:
    """Checks where turns, template text and outputs stand to one another; `field`: the call's.

    Raises:
        Fault: `invalid_template`, `too_large`.
    """
    pieces = list(segments)
    turns = [place for place, piece in enumerate(pieces) if piece.HasField("turn")]
    if not turns:
        return
    where = f"{field}.messages"
    if len(turns) > limits.CHAT_MESSAGES:
        raise too_large(where, len(turns), limits.CHAT_MESSAGES, unit="messages")
    for number, place in enumerate(turns):
        if not _ROLE.fullmatch(pieces[place].turn.role):
            raise _invalid(where, f"message {number} has a role that is no role's name")
    if turns[0] != 0:
        raise _invalid(where, "a chat begins with a turn")
    if len(turns) < 2 or pieces[turns[-1]].turn.role != ASSISTANT:
        raise _invalid(where, "a chat's last message is the assistant's, behind one at least of another")
    outputs = [place for place, piece in enumerate(pieces) if piece.HasField("output")]
    if outputs and outputs[0] < turns[-1]:
        raise _invalid(where, "an output stands in a message that is not the last")
    if any(piece.HasField("text") for piece in pieces):
        raise _invalid(where, "a chat's messages are plain text, not template text")


def _invalid(where: str, what: str) -> Fault:
    return Fault(errors.INVALID_TEMPLATE, f"{where}: {what}", field=where)
