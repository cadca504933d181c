"""Ids as the prototype has them: sessions are integers, and a variable's id tells its name."""

from __future__ import annotations

import re
from typing import Final

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import SHARDS, is_id, is_session_id

_SHARD_BITS: Final = 64
_BELOW_SHARD: Final = (1 << _SHARD_BITS) - 1
_DIGITS: Final = re.compile(r"[0-9]{1,24}\Z")
_NAMED: Final = re.compile(r"(?:set|v)-[0-9a-f]{16}-(.+)\Z")
_TO_BE_SET: Final = "set-"


def number_of(session_id: str) -> int:
    """A session's id as a number: its shard, and the 64 bits behind it."""
    return (int(session_id[1:3], 16) << _SHARD_BITS) | int(session_id[4:], 16)


def session_id_of(given: str) -> str:
    """The id of the session that a client means, by its number or its id.

    Raises:
        Fault: `not_found`, when it can be none.
    """
    if is_session_id(given):
        return given
    number = int(given) if _DIGITS.match(given) else SHARDS << _SHARD_BITS
    if number >> _SHARD_BITS >= SHARDS:
        raise Fault(errors.NOT_FOUND, "there is no such session", field="session_id")
    return f"s{number >> _SHARD_BITS:02x}-{number & _BELOW_SHARD:016x}"


def named_id(variable_id: str, name: str) -> str:
    """A new variable's id with its name in it, as far as an id may hold it."""
    named = f"{variable_id}-{name}"
    return named if name and is_id(named) else variable_id


def settable_id(variable_id: str, name: str) -> str:
    """The same, of a variable that is to be set."""
    return named_id(_TO_BE_SET + variable_id.removeprefix("v-"), name)


def is_settable(variable_id: str) -> bool:
    """Whether an id is that of a variable that is to be set."""
    return variable_id.startswith(_TO_BE_SET)


def name_in(variable_id: str) -> str:
    """The name that an id tells; empty: it tells none."""
    match = _NAMED.match(variable_id)
    return match[1] if match is not None else ""
