"""Text to tokens, under one rule: only template text may yield control tokens, values never do.

A value that spells a control token (`<|im_end|>`) is text that looks like one. It is encoded by a
second tokenizer that has the same vocabulary and merges and knows no control token at all.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from parrot_engine.text.chat import ChatFormat, ChatFormatError
from parrot_engine.text.encoder_plan import EncoderPlan
from parrot_engine.text.incremental import IncrementalEncoder
from parrot_engine.text.spelling import Spelling

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNREACHABLE: Final = "\uffff"
"""Starts the vocabulary's spelling of what no text may become: the noncharacter U+FFFF doubled by
an index, which byte-level vocabularies never make."""


class TokenizerError(Exception):
    """A model's tokenizer can't be used; says why."""


class PromptTokenizer(ABC):
    """A model's tokenizer as prompts need it. Encoding adds nothing that is not in the text."""

    @property
    @abstractmethod
    def bos_ids(self) -> tuple[int, ...]:
        """What every prompt starts with: one token where the model wants one, else none."""

    @property
    @abstractmethod
    def control_ids(self) -> frozenset[int]:
        """The tokens that steer the model and stand for no text."""

    @property
    @abstractmethod
    def vocabulary_tokens(self) -> int:
        """How many tokens there are; they are numbered from 0."""

    @property
    @abstractmethod
    def chat_format(self) -> ChatFormat | None:
        """How the model wants chats; None: it was not made for them."""

    @abstractmethod
    def encode_template(self, text: str) -> list[int]:
        """Template text; the control tokens it spells become control tokens."""

    @abstractmethod
    def encode_value(self, text: str) -> list[int]:
        """Plain text, whatever it looks like; never a control token."""

    @abstractmethod
    def value_encoder(self) -> IncrementalEncoder:
        """Encodes one plain text as it comes, into the tokens of `encode_value` of the whole."""

    @abstractmethod
    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, control tokens spelt out."""

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of UTF-8 one token stands for, possibly a part of a character; a control token's name."""

    def start_prompt(self, token_ids: list[int]) -> list[int]:
        """A root context's first tokens with `bos_ids` in front, once."""
        bos = list(self.bos_ids)
        return token_ids if token_ids[: len(bos)] == bos else bos + token_ids


class ModelTokenizer(PromptTokenizer):
    """The tokenizer of a Hugging Face model folder (`tokenizer.json`).

    Characters that a model's vocabulary can't spell are left out, as its own tokenizer does:
    SmolLM2 lacks six control characters and the planes from U+40000 on.
    """

    def __init__(
        self, spec: dict[str, Any], config: dict[str, Any], chat_format: ChatFormat | None = None
    ) -> None:
        """Builds it from the contents of tokenizer.json and tokenizer_config.json.

        Raises:
            TokenizerError: it is of a kind whose control tokens can't be kept apart.
        """
        self._template = _build({**spec, "truncation": None, "padding": None})
        self._control = frozenset(int(token["id"]) for token in spec.get("added_tokens", []))
        value_spec = _without_control_tokens(spec, self._control)
        self._value = _build(value_spec)
        self._growing = EncoderPlan(value_spec, self._value, _build, _encode)
        self._bos = _bos_ids(self._template, config)
        self._spelling = Spelling(spec)
        self._chat_format = chat_format

    @classmethod
    def load(cls, folder: Path) -> ModelTokenizer:
        """The tokenizer of the model in `folder`.

        Raises:
            TokenizerError: there is none, or it can't be used.
        """
        config_file = folder / "tokenizer_config.json"
        try:
            spec = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
            config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.exists() else {}
        except (OSError, ValueError) as error:
            raise TokenizerError(f"the tokenizer in {folder} can't be read: {error}") from None
        try:
            return cls(spec, config, ChatFormat.load(folder))
        except ChatFormatError as error:
            raise TokenizerError(str(error)) from None

    @property
    def bos_ids(self) -> tuple[int, ...]:
        return self._bos

    @property
    def control_ids(self) -> frozenset[int]:
        return self._control

    @property
    def vocabulary_tokens(self) -> int:
        return int(self._template.get_vocab_size(with_added_tokens=True))

    @property
    def chat_format(self) -> ChatFormat | None:
        return self._chat_format

    def encode_template(self, text: str) -> list[int]:
        return _encode(self._template, text)

    def encode_value(self, text: str) -> list[int]:
        return _encode(self._value, text)

    def value_encoder(self) -> IncrementalEncoder:
        return self._growing.start()

    def decode(self, token_ids: Sequence[int]) -> str:
        return str(self._template.decode(list(token_ids), skip_special_tokens=False))

    def token_bytes(self, token_id: int) -> bytes:
        piece = self._template.id_to_token(token_id) or ""
        return piece.encode() if token_id in self._control else self._spelling.bytes_of(piece)


def _build(spec: dict[str, Any]) -> Tokenizer:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_str(json.dumps(spec))
    except Exception as error:  # noqa: BLE001  (the library raises bare Exception)
        raise TokenizerError(f"tokenizer.json can't be used: {error}") from None


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    # `encode` would keep every other thread waiting: for megabytes, longer than an engine may be silent.
    return list(tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids)


def _without_control_tokens(spec: dict[str, Any], control_ids: frozenset[int]) -> dict[str, Any]:
    """The same tokenizer without added tokens, and with their spellings out of the vocabulary's reach.

    Emptying `added_tokens` alone is not enough: many vocabularies list the markers too, and a model
    that looks whole words up would find them there.
    """
    model = dict(spec["model"])
    kind = model.get("type")
    if kind == "BPE":
        _hide_from_bpe(model, control_ids)
    elif kind == "Unigram":
        model["vocab"] = [
            [_hidden(index), score]
            if index in control_ids and index != model.get("unk_id")
            else [piece, score]
            for index, (piece, score) in enumerate(model["vocab"])
        ]
    else:
        raise TokenizerError(f"a tokenizer of type {kind} can't be used; BPE and Unigram can")
    return {
        **spec,
        "model": model,
        "added_tokens": [],
        "post_processor": None,
        "truncation": None,
        "padding": None,
    }


def _hide_from_bpe(model: dict[str, Any], control_ids: frozenset[int]) -> None:
    vocab: dict[str, int] = model["vocab"]
    hidden = {piece for piece, index in vocab.items() if index in control_ids}
    model["vocab"] = {_hidden(index) if piece in hidden else piece: index for piece, index in vocab.items()}
    model["merges"] = [merge for merge in model["merges"] if hidden.isdisjoint(_pieces(merge))]
    if model.get("unk_token") in hidden:
        model["unk_token"] = None


def _hidden(index: int) -> str:
    return f"{UNREACHABLE}{UNREACHABLE}{index}"


def _pieces(merge: str | Iterable[str]) -> tuple[str, ...]:
    left, right = merge.split(" ") if isinstance(merge, str) else merge
    return left, right, left + right


def _bos_ids(tokenizer: Tokenizer, config: dict[str, Any]) -> tuple[int, ...]:
    """What the model's own encoding starts with; tokenizer_config's `add_bos_token` has the last word."""
    declared = config.get("bos_token")
    name = declared.get("content") if isinstance(declared, dict) else declared
    bos = tokenizer.token_to_id(name) if name else None
    if bos is None:
        return ()
    wanted = config.get("add_bos_token")
    if wanted is None:
        wanted = tokenizer.encode("", add_special_tokens=True).ids[:1] == [bos]
    return (bos,) if wanted else ()
