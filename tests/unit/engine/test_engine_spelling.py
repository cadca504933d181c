"""The bytes a token stands for: together they are the text, whatever the vocabulary's spelling."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_engine.models import find_model
from parrot_engine.settings import default_cache_dir
from parrot_engine.text.byte_tokens import CONTROL, ByteTokenizer
from parrot_engine.text.spelling import Spelling
from parrot_engine.text.tokens import ModelTokenizer, PromptTokenizer


@pytest.fixture(scope="module")
def smollm2() -> ModelTokenizer:
    return ModelTokenizer.load(find_model("smollm2", default_cache_dir(), lambda line: None).path)


@given(text=st.text("ab \n漢😀é", max_size=20))
def test_a_texts_tokens_are_its_bytes(smollm2: ModelTokenizer, text: str) -> None:
    tokenizers: list[PromptTokenizer] = [smollm2, ByteTokenizer()]
    for tokenizer in tokenizers:
        ids = tokenizer.encode_value(text)
        assert b"".join(map(tokenizer.token_bytes, ids)) == text.encode()
        assert all(token < tokenizer.vocabulary_tokens for token in ids)


def test_a_control_token_is_told_by_its_name(smollm2: ModelTokenizer) -> None:
    (token,) = smollm2.encode_template("<|im_end|>")
    assert smollm2.token_bytes(token) == b"<|im_end|>"
    assert ByteTokenizer().token_bytes(CONTROL["<|im_end|>"]) == b"<|im_end|>"


def test_marks_of_sentencepiece_are_spaces_and_bytes() -> None:
    spelling = Spelling({"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}]}})
    assert [spelling.bytes_of(piece) for piece in ("▁the", "<0xE6>", "é")] == [b" the", b"\xe6", "é".encode()]
