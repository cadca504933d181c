"""The simulated model's tokenizer: a token a byte of UTF-8, and a few control tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from parrot_engine.text.chat import CHATML, ChatFormat
from parrot_engine.text.incremental import CharEncoder, IncrementalEncoder
from parrot_engine.text.tokens import PromptTokenizer

CONTROL: Final = {"<|endoftext|>": 256, "<|im_start|>": 257, "<|im_end|>": 258, "<|begin|>": 259}
EOS_ID: Final = CONTROL["<|im_end|>"]
BOS_ID: Final = CONTROL["<|begin|>"]

_MARKERS = re.compile("(" + "|".join(map(re.escape, CONTROL)) + ")")
_SPELLING: Final = {index: marker.encode() for marker, index in CONTROL.items()}


class ByteTokenizer(PromptTokenizer):
    """Encodes and decodes without loss, whatever the text."""

    def __init__(self, *, with_bos: bool = False) -> None:
        """With `with_bos`, every prompt starts with `<|begin|>`."""
        self._bos = (BOS_ID,) if with_bos else ()
        self._chat_format = ChatFormat(CHATML, {})

    @property
    def bos_ids(self) -> tuple[int, ...]:
        return self._bos

    @property
    def control_ids(self) -> frozenset[int]:
        return frozenset(_SPELLING)

    @property
    def vocabulary_tokens(self) -> int:
        return 256 + len(CONTROL)

    @property
    def chat_format(self) -> ChatFormat:
        return self._chat_format

    def encode_template(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _MARKERS.split(text):
            ids += [CONTROL[piece]] if piece in CONTROL else piece.encode()
        return ids

    def encode_value(self, text: str) -> list[int]:
        return list(text.encode())

    def value_encoder(self) -> IncrementalEncoder:
        return CharEncoder(self.encode_value)

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return _SPELLING.get(token_id) or bytes([token_id])
