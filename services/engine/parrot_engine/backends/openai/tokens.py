"""The tokens of a server whose tokenizer is not known here."""

from __future__ import annotations

from collections.abc import Sequence

from parrot_engine.text.byte_tokens import ByteTokenizer


class TextTokens(ByteTokenizer):
    """Text as bytes of UTF-8, and nothing else: control tokens are the server's to make of their names.

    So a value that spells a control token may become one there. Lengths in these tokens are upper
    bounds of the server's own.
    """

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset()

    @property
    def vocabulary_tokens(self) -> int:
        return 256

    def encode_template(self, text: str) -> list[int]:
        return self.encode_value(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token_ids).decode(errors="replace")
