"""Text that is encoded as it comes becomes the tokens of the whole, and is not held back for long."""

# ruff: noqa: RUF001  (characters that look alike are what is tried)
from __future__ import annotations

import base64
import importlib
import io
import json
import random
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import pairwise
from pydoc_data.topics import topics
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from parrot_engine.models import find_model
from parrot_engine.settings import default_cache_dir
from parrot_engine.text.byte_tokens import ByteTokenizer
from parrot_engine.text.patterns import BOUNDARY, CLEAR, INSIDE, Pattern, UnsupportedPatternError
from parrot_engine.text.tokens import ModelTokenizer, PromptTokenizer

Spec = dict[str, Any]

ENGLISH: Final = "\n".join(topics.values())
CHINESE: Final = (
    "子曰：「學而時習之，不亦說乎？有朋自遠方來，不亦樂乎？人不知而不慍，不亦君子乎？」"
    "天下皆知美之為美，斯惡已。皆知善之為善，斯不善已。人工智能正在改变世界，我们需要认真思考它的影响。"
    "一个没有标点符号的句子可以很长而且中文里没有空格所以分词器必须自己决定在哪里断开这个句子"
)
CORPUS: Final = [*ENGLISH[:150_000].splitlines(keepends=True), *[CHINESE + "\n"] * 20]

LLAMA3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN: Final = LLAMA3.replace("{1,3}", "")
POSSESSIVE: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
O200K: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

HARD: Final = [
    "'ll", "'LL", "don't", "x'S", "'ſ", "the", " ", "  ", "   ", "\n", "\n\n", " \n ", "\r\n", "\t",
    "\v", "\x1c",
    "\x85", "\xa0", "\u2003", "\u2028", "1", "12", "1234567", "½", "²", "٣", "०", "①", "ﬁ", "ﬀ", "K",
    "é", "e\u0301",
    "\u0301", "\u0327", "\u0338", "\u1100", "\u1161", "\u11a8", "가", "각", "か", "\u3099", "ガ", "漢", "字",
    "人工",
    "智能", "ß", "ẞ", "İ", "ı", "Жя", "אב", "\u0bbe", "\u09c7", "\u09be", "ำ", "क्षि", "👨\u200d👩\u200d👧",
    "👩🏽", "🇩🇪",
    "😀", "\ufe0f", "\u200d", "▁", "▁▁", "<|im_end|>", "<unk>", "<s>", "</s>", "<0x0A>", "\0", "\x04",
    "\ufffe",
    "\U00040000", "\u0378", "hello", " world", "function", "====", "-", "_", "/", ".", ",", "{", "}}",
    "a", "B",
    "a" * 30, "=" * 40, " " * 40, "AB" * 20, "ACGT" * 10, "我们需要认真思考它的影响" * 3,
    "aGVsbG8gd29ybGQ" * 3,
]  # fmt: skip
hard_texts = st.lists(
    st.one_of(st.sampled_from(HARD), st.text(st.characters(exclude_categories=["Cs"]), max_size=4)),
    max_size=14,
).map("".join)


def byte_level(pre: Any, normalizer: Any = None, **model: Any) -> Spec:
    """A byte-level tokenizer trained on the corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.normalizer = pre, normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=2_500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    made: Spec = json.loads(tokenizer.to_str())
    made["model"] |= model
    return made


def split_at(pattern: str) -> Any:
    splits = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence(
        [splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


@lru_cache
def sentencepiece_model(kind: str) -> Any:
    sentencepiece: Any = importlib.import_module("sentencepiece")
    proto: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    out = io.BytesIO()
    rules: Spec = {"byte_fallback": True, "split_digits": True, "normalization_rule_name": "identity",
                   "remove_extra_whitespaces": False} if kind == "bpe" else {}  # fmt: skip
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=(line.rstrip("\n") for line in CORPUS),
        model_writer=out, vocab_size=2_000, model_type=kind, minloglevel=2, **rules,
    )  # fmt: skip
    return proto.ModelProto.FromString(out.getvalue())


def unigram(pre: Spec, *, charsmap_only: bool = False) -> Spec:
    found = sentencepiece_model("unigram")
    charsmap = base64.b64encode(found.normalizer_spec.precompiled_charsmap).decode()
    steps: list[Spec] = [{"type": "Precompiled", "precompiled_charsmap": charsmap}]
    if not charsmap_only:
        steps.append({"type": "Strip", "strip_left": False, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"})
    vocab = [[piece.piece, piece.score] for piece in found.pieces]
    model = {"type": "Unigram", "unk_id": 0, "vocab": vocab, "byte_fallback": False}
    return spec(model, {"type": "Sequence", "normalizers": steps}, pre)


def sentencepiece_bpe(normalizer: Spec | None, pre: Spec | None, **changes: Any) -> Spec:
    pieces = sentencepiece_model("bpe").pieces
    vocab = {piece.piece: index for index, piece in enumerate(pieces)}
    merges = [
        [piece.piece[:cut], piece.piece[cut:]]
        for piece in pieces
        if piece.type == 1
        for cut in range(1, len(piece.piece))
        if piece.piece[:cut] in vocab and piece.piece[cut:] in vocab
    ]
    model = {"type": "BPE", "vocab": vocab, "merges": merges, "unk_token": "<unk>", "fuse_unk": True}
    return spec(model | {"byte_fallback": True} | changes, normalizer, pre)


def spec(model: Spec, normalizer: Spec | None, pre: Spec | None) -> Spec:
    return {
        "version": "1.0", "added_tokens": [], "normalizer": normalizer, "pre_tokenizer": pre,
        "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip


def metaspace(scheme: str, *, split: bool = True) -> Spec:
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}


def in_order(*parts: Spec, key: str = "normalizers") -> Spec:
    return {"type": "Sequence", key: list(parts)}


UNDERLINE: Final[Spec] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
PREPEND: Final[Spec] = {"type": "Prepend", "prepend": "▁"}
STRIP: Final[Spec] = {"type": "Strip", "strip_left": True, "strip_right": True}
BERT: Final[Spec] = {
    "type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None,
    "lowercase": True,
}  # fmt: skip
AT_SPACES: Final[Spec] = {
    "type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False,
}  # fmt: skip
plain_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False)

KINDS: Final[dict[str, Callable[[], Spec]]] = {
    "gpt2": lambda: byte_level(plain_bytes),
    "gpt2-led-by-a-space": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "numbers-then-gpt2": lambda: byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(False), pre_tokenizers.ByteLevel()])
    ),
    "llama3": lambda: byte_level(split_at(LLAMA3), ignore_merges=True),
    "possessive": lambda: byte_level(split_at(POSSESSIVE)),
    "qwen": lambda: byte_level(split_at(QWEN), normalizers.NFC()),
    "o200k": lambda: byte_level(split_at(O200K), normalizers.NFKC()),
    "lower-case": lambda: byte_level(
        split_at(QWEN),
        normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()]),
    ),
    "punctuation": lambda: byte_level(pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), plain_bytes])),
    "t5": lambda: unigram(metaspace("always")),
    "xlm-roberta": lambda: unigram(
        in_order({"type": "WhitespaceSplit"}, metaspace("always"), key="pretokenizers"), charsmap_only=True
    ),
    "unigram-led-once": lambda: unigram(metaspace("first")),
    "llama2": lambda: sentencepiece_bpe(in_order(PREPEND, UNDERLINE), None),
    "gemma": lambda: sentencepiece_bpe(UNDERLINE, AT_SPACES),
    "mistral": lambda: sentencepiece_bpe(None, metaspace("first", split=False)),
    "stripped": lambda: sentencepiece_bpe(in_order(STRIP, PREPEND, UNDERLINE), None),
    "unknown-as-one": lambda: sentencepiece_bpe(None, metaspace("first", split=False), byte_fallback=False),
    "unknown-dropped": lambda: sentencepiece_bpe(
        None, metaspace("always", split=False), byte_fallback=False, unk_token=None
    ),
}  # fmt: skip
MAIN: Final = ("smollm2", "llama3", "t5", "llama2")


@lru_cache
def tokenizer_of(kind: str) -> PromptTokenizer:
    if kind == "smollm2":
        return ModelTokenizer.load(find_model("smollm2", default_cache_dir(), lambda line: None).path)
    return ByteTokenizer() if kind == "bytes" else ModelTokenizer(KINDS[kind](), {})


def encode(tokenizer: PromptTokenizer, *parts: str) -> list[int]:
    encoder = tokenizer.value_encoder()
    return [token for part in parts for token in encoder.push(part)] + encoder.finish()


def cut(text: str, places: list[int]) -> list[str]:
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


def released_chars(tokenizer: PromptTokenizer, text: str) -> Iterator[int]:
    """How many characters the tokens released so far stand for, after each character of a text."""
    encoder = tokenizer.value_encoder()
    chars = 0
    for char in text:
        chars += len(tokenizer.decode(encoder.push(char)))
        yield chars


@pytest.mark.parametrize("kind", ["bytes", "smollm2", *KINDS])
@settings(deadline=None)
@given(text=hard_texts, places=st.lists(st.integers(0, 500), max_size=12))
def test_the_tokens_are_those_of_the_whole_however_it_is_cut(kind: str, text: str, places: list[int]) -> None:
    tokenizer = tokenizer_of(kind)
    whole = tokenizer.encode_value(text)
    assert encode(tokenizer, *cut(text, places)) == whole
    assert encode(tokenizer, *text) == whole


@pytest.mark.parametrize("kind", MAIN)
def test_real_paragraphs_may_be_cut_in_two_anywhere(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    paragraphs = [found[:220] for found in ENGLISH.split("\n\n") if len(found) > 60]
    for text in [*paragraphs[:: len(paragraphs) // 6], CHINESE]:
        whole = tokenizer.encode_value(text)
        for place in range(len(text) + 1):
            assert encode(tokenizer, text[:place], text[place:]) == whole


@pytest.mark.parametrize("kind", [*MAIN, "qwen", "o200k", "mistral"])
def test_a_long_text_in_pieces_of_any_size_is_the_tokens_of_the_whole(kind: str) -> None:
    tokenizer, sizes = tokenizer_of(kind), random.Random(7)
    text = ENGLISH[:20_000] + CHINESE * 3 + "aGVsbG8+/" * 300 + ENGLISH[20_000:40_000]
    whole = tokenizer.encode_value(text)
    for most in (5, 300, 6_000):
        places = [0]
        while places[-1] < len(text):
            places.append(places[-1] + sizes.randint(1, most))
        assert encode(tokenizer, *cut(text, places[:-1])) == whole, most
    assert encode(tokenizer, text) == whole


@pytest.mark.parametrize("kind", MAIN)
@pytest.mark.parametrize("run", ["=", " ", "\n", "a", "ACGT", "7", "漢", "😀", "a\x04", "\u0301", " \n"])
def test_a_long_run_without_a_place_to_cut_is_the_tokens_of_the_whole(kind: str, run: str) -> None:
    tokenizer = tokenizer_of(kind)
    text = "x" + run * 3_000 + "y"
    assert encode(tokenizer, *cut(text, list(range(0, len(text), 7)))) == tokenizer.encode_value(text)


@pytest.mark.parametrize("kind", ["smollm2", "llama3", "qwen", "o200k", "gpt2"])
def test_of_english_prose_no_more_than_the_last_word_is_held_back(kind: str) -> None:
    text = "".join(line for line in ENGLISH[:20_000].splitlines(keepends=True) if line[:1].isalpha())
    tokenizer = tokenizer_of(kind)
    for pushed, released in enumerate(released_chars(tokenizer, text), start=1):
        assert len(text[released:pushed].split()) <= 1, text[released:pushed]


@pytest.mark.parametrize(("kind", "most"), [("smollm2", 4), ("llama3", 16), ("qwen", 16), ("gpt2", 16)])
def test_of_chinese_no_more_than_a_few_words_are_held_back(kind: str, most: int) -> None:
    text = CHINESE.replace("，", "") * 3
    held = [
        pushed - released for pushed, released in enumerate(released_chars(tokenizer_of(kind), text), start=1)
    ]
    assert max(held) <= most


@pytest.mark.parametrize("kind", ["bytes", "smollm2", *KINDS])
def test_a_text_of_words_is_released_before_its_end(kind: str) -> None:
    encoder = tokenizer_of(kind).value_encoder()
    assert not encoder.waits_for_end
    assert encoder.push("Several words come in a row, ")


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: unigram(metaspace("always", split=False)), "nothing splits"),
        (lambda: sentencepiece_bpe(None, {"type": "UnicodeScripts"}), "UnicodeScripts"),
        (lambda: sentencepiece_bpe(BERT, None), "BertNormalizer"),
        (lambda: sentencepiece_bpe(None, metaspace("never"), dropout=0.0001), "by chance"),
        (lambda: byte_level(split_at(r"(?<=a)b|\s+|\S+")), "unknown kind"),
        (lambda: byte_level(split_at(r"\S+?|\s")), "lazy"),
    ],
)  # fmt: skip
def test_a_tokenizer_that_is_not_understood_releases_nothing_before_the_end(
    made: Callable[[], Spec], why: str
) -> None:
    tokenizer = ModelTokenizer(made(), {})
    encoder = tokenizer.value_encoder()
    assert why in encoder.waits_for_end
    assert encoder.push("Several words ") == encoder.push("come, b in ab row.") == []
    assert tokenizer.decode(encoder.finish()).replace("▁", " ").strip()


def test_two_texts_at_once_do_not_mix() -> None:
    tokenizer = tokenizer_of("llama3")
    one, other = tokenizer.value_encoder(), tokenizer.value_encoder()
    tokens: tuple[list[int], list[int]] = ([], [])
    for left, right in zip(ENGLISH[:500], CHINESE * 5, strict=False):
        tokens[0].extend(one.push(left))
        tokens[1].extend(other.push(right))
    assert tokens[0] + one.finish() == tokenizer.encode_value(ENGLISH[:500])
    assert tokens[1] + other.finish() == tokenizer.encode_value((CHINESE * 5)[:500])


@pytest.mark.parametrize("name", ["\\p{L}", "\\p{M}", "\\p{N}", "\\p{P}", "\\p{S}", "\\s"])
def test_the_kinds_of_characters_are_the_librarys_own(name: str) -> None:
    known = [chr(code) for code in range(0x20000) if unicodedata.category(chr(code)) not in ("Cn", "Cs")]
    kept = pre_tokenizers.Split(Regex(name), "removed", invert=True).pre_tokenize_str("".join(known))
    theirs = "".join(piece for piece, _ in kept)
    pattern = Pattern(name)
    assert theirs == "".join(char for char in known if pattern.step(0, char)[0])


@pytest.mark.parametrize(
    ("pattern", "text", "verdict"),
    [
        (r"\p{L}+|\s", "a ", BOUNDARY), (r"\p{L}+|\s", "ab", INSIDE), (r"\p{L}+|\s", "!?", CLEAR),
        (r"\p{L}+|\s", "!a", BOUNDARY), (r"\p{L}+(?!x)", "ab", 0), (r"\p{L}+(?!x)", "a ", CLEAR),
        (r"\p{L}+(?!x)", "ax", 0), (r"\p{N}{1,3}", "12", 0), (r"'ll|\p{L}", "'l", 0), (r"'ll|\p{L}",
        "'ll", 0),
        (r"'ll|\p{L}", "all", BOUNDARY), (r"(?i:'s)|.", "'ſ", 0), (r"[a-c]x|\S|\s", "bx", 0),
        (r"[a-c]x|\S|\s", "dx", BOUNDARY), (r"a++|b?+c", "aa", INSIDE), (r"a++|b?+c", "bc", 0),
        (r"\s+$|\s", "  ", 0), (r"[^\d]\d|\D|\d", "a1", 0), (r"(?=ab)a|[ab]", "ab", 0), (r"\x41\u0042",
        "AB", 0),
    ],
)  # fmt: skip
def test_what_may_cross_a_place_is_read_from_the_expression(pattern: str, text: str, verdict: int) -> None:
    found, state, last = Pattern(pattern), 0, -1
    for char in text:
        state, last = found.step(state, char)
    assert last == verdict


@pytest.mark.parametrize(
    "pattern",
    [
        "a*", "", "a|", r"(?<=a)b", r"(?<!a)b", r"a+?", r"\bword", "^a", r"\w+", r"[[:alpha:]]+",
        "[a&&b]", "(a", "a)",
        r"\p{Han}", "(?i:[^a])b", "(?i:ss)", "(?>a)", "(?i)a", r"a{1,1000}", r"(a)\1", "*a", "[a", "a\\"
    ],
)  # fmt: skip
def test_an_expression_that_is_not_understood_is_refused(pattern: str) -> None:
    with pytest.raises(UnsupportedPatternError):
        Pattern(pattern)
