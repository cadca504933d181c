"""API keys: how they are made, and what of them may be kept.

A key is `pk-<id>-<secret>`. The secret has 256 random bits, so a plain SHA-256 of it can be kept: there is
nothing to guess. The id is no secret; it says in lists and logs which key is meant.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field
from typing import Final

PREFIX: Final = "pk"
_SECRET_BYTES: Final = 32
_KEY: Final = re.compile(rf"{PREFIX}-([0-9a-f]{{12}})-([A-Za-z0-9_-]{{43}})\Z")


@dataclass(frozen=True, slots=True)
class KeyParts:
    """What of a key is shown, and what is compared: the SHA-256 of its secret."""

    id: str
    digest: bytes = field(repr=False)


def new_api_key() -> str:
    """A key nobody else has."""
    return f"{PREFIX}-{secrets.token_hex(6)}-{secrets.token_urlsafe(_SECRET_BYTES)}"


def parts_of(key: str) -> KeyParts | None:
    """The parts of a key; None for a text that is none."""
    match = _KEY.match(key)
    if match is None:
        return None
    return KeyParts(match[1], hashlib.sha256(match[2].encode()).digest())
