"""How a vocabulary spells bytes: by GPT-2's printable stand-ins, or with marks as SentencePiece has them."""

from __future__ import annotations

import re
from typing import Any, Final

_BYTE: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_SPACE: Final = "\u2581"


class Spelling:
    """A vocabulary's."""

    def __init__(self, spec: dict[str, Any]) -> None:
        """Of the tokenizer that a tokenizer.json describes."""
        self._stand_ins = _stand_ins() if _is_byte_level(spec) else None

    def bytes_of(self, piece: str) -> bytes:
        """The bytes that an entry of the vocabulary stands for."""
        if self._stand_ins is not None:
            return b"".join(self._stand_ins.get(char) or char.encode() for char in piece)
        byte = _BYTE.match(piece)
        return bytes.fromhex(byte[1]) if byte is not None else piece.replace(_SPACE, " ").encode()


def _is_byte_level(spec: dict[str, Any]) -> bool:
    decoder = spec.get("decoder") or {}
    return any(one.get("type") == "ByteLevel" for one in (decoder, *decoder.get("decoders", ())))


def _stand_ins() -> dict[str, bytes]:
    """The character that stands for each byte, the printable ones for themselves (GPT-2's encoder.py)."""
    printable = {*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    spelt = {chr(byte): bytes([byte]) for byte in printable}
    return spelt | {chr(256 + place): bytes([byte]) for place, byte in enumerate(others)}
