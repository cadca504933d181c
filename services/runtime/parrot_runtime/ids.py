"""Identifiers: how they are made, what they may contain, and what they carry.

A session's id carries its shard, so that whoever holds the id knows the bus subjects and the
table partition it lives in. Ids are single tokens of a bus subject: no dots, blanks or wildcards.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Sequence
from typing import Final

SHARDS: Final = 16
ID_CHARS: Final = 64
ID_RULE: Final = "1 to 64 of A-Z, a-z, 0-9, '_' and '-'"

_ID = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
_SESSION = re.compile(r"s([0-9a-f]{2})-[0-9a-z]{16}\Z")


def is_id(text: str) -> bool:
    """Whether `text` may be a variable's id: `ID_RULE`."""
    return _ID.match(text) is not None


def new_session_id(shards: Sequence[int] = range(SHARDS)) -> str:
    """A new session id, `s<shard>-<random>`, its shard drawn at random."""
    return f"s{secrets.choice(shards):02x}-{secrets.token_hex(8)}"


def session_id_of(tenant: str, key: str) -> str:
    """The id of the session a tenant opens under an idempotency key: the same for every try."""
    digest = hashlib.blake2b(f"{tenant}\0{key}".encode(), digest_size=9).digest()
    return f"s{digest[0] % SHARDS:02x}-{digest[1:].hex()}"


def new_variable_id() -> str:
    """An id for a variable the client did not name."""
    return f"v-{secrets.token_hex(8)}"


def is_session_id(text: str) -> bool:
    """Whether `text` has the form of a session id."""
    match = _SESSION.match(text)
    return match is not None and int(match[1], 16) < SHARDS


def shard_of(session_id: str) -> int:
    """The shard a session lives in.

    Raises:
        ValueError: `session_id` does not have the form of a session id.
    """
    if not is_session_id(session_id):
        raise ValueError(f"not a session id: {session_id!r}")
    return int(session_id[1:3], 16)
