"""The model's own chat format, in segments: the template's text, and places for the messages' contents.

Contents never reach the template: it is run once with stand-ins, and its output is cut at them. So
one format serves all contents, what it says in front is a prefix they share, and a content that
spells a marker stays content.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Final

from parrot_engine.text.chat_sandbox import ChatFormatError, ChatTemplate

__all__ = ["CHATML", "ChatFormat", "ChatFormatError", "ChatPiece", "ContentPiece", "TemplatePiece", "fill"]

MOST_MESSAGES: Final = 2_048
KEPT_FORMATS: Final = 64
"""Sequences of roles whose segments are remembered."""
_ROLE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
_CORE: Final = re.compile("Q[0-9a-f]{32}Z")
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class TemplatePiece:
    """Text of the template; the control tokens it spells are control tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class ContentPiece:
    """Where a message's content goes, as plain text.

    Attributes:
        index: the message's, from 0.
        strip: without the white space at its ends, as `str.strip` has it.
    """

    index: int
    strip: bool


ChatPiece = TemplatePiece | ContentPiece


class ChatFormat:
    """A model's chat format. May be used by any thread."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """Takes the template; it is read when it is first used.

        Args:
            special_tokens: the texts of `bos_token` and its like.
        """
        self._source = source
        self._special = dict(special_tokens)
        self._remembered = lru_cache(maxsize=KEPT_FORMATS)(self._make_segments)

    @classmethod
    def load(cls, folder: Path) -> ChatFormat | None:
        """The chat format of the model in `folder`: chat_template.jinja, else tokenizer_config.json's.

        Raises:
            ChatFormatError: a file can't be read.
        """
        template, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
        try:
            settings = json.loads(config.read_text(encoding="utf-8")) if config.exists() else {}
            source = template.read_text(encoding="utf-8") if template.exists() else _default(settings)
        except (OSError, ValueError) as error:
            raise ChatFormatError(f"the chat format in {folder} can't be read: {error}") from None
        return cls(source, _special_tokens(settings)) if source else None

    def segments(self, roles: Sequence[str], *, add_generation_prompt: bool = True) -> tuple[ChatPiece, ...]:
        """The prompt for messages of these roles, contents left open.

        Args:
            add_generation_prompt: ends with what the assistant's answer begins with.

        Raises:
            ChatFormatError: the template refuses these roles, fails, or does more to a content than
                place it or trim it.
        """
        if not 0 < len(roles) <= MOST_MESSAGES:
            raise ChatFormatError(f"a chat has between 1 and {MOST_MESSAGES} messages, not {len(roles)}")
        for index, role in enumerate(roles):
            # A role becomes template text: it must not spell control tokens.
            if not _ROLE.fullmatch(role):
                raise ChatFormatError(f"message {index} has the role {role[:80]!r}, which is no role's name")
        return self._remembered(tuple(roles), add_generation_prompt, date.today())

    def text(self, roles: Sequence[str], contents: Sequence[str]) -> str:
        """Messages as the template itself writes them, without the beginning of an answer.

        For comparisons: what it does to contents is not looked at, as `segments` does.

        Raises:
            ChatFormatError: the template refuses these roles, or fails.
        """
        return self._render(roles, contents, prompt=False)

    @cached_property
    def _template(self) -> ChatTemplate:
        return ChatTemplate(self._source)

    def _make_segments(self, roles: tuple[str, ...], prompt: bool, _today: date) -> tuple[ChatPiece, ...]:
        """Today is among the arguments because a template may say it."""
        stand_ins = [_StandIn.make() for _ in roles]
        segments = _cut(self._render(roles, [stand_in.slot for stand_in in stand_ins], prompt), stand_ins)
        for probe in self._probes:
            contents = [f"{probe}{index}" if probe.strip() else probe for index in range(len(roles))]
            if self._render(roles, contents, prompt) != fill(segments, contents):
                raise ChatFormatError(
                    "the model's chat template does more to contents than place or trim them"
                )
        return segments

    @cached_property
    def _probes(self) -> tuple[str, ...]:
        """Contents that show what is done to them: none, white space, a number, all that is looked for."""
        return (
            "",
            " \n\t ",
            "7",
            " \n<&>\"'\\é漢{{ x }}\n" + "\n".join(self._template.texts)[:65_536] + " \n",
        )

    def _render(self, roles: Sequence[str], contents: Sequence[str], prompt: bool) -> str:
        messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
        return self._template.render(
            {
                **self._special,
                "messages": messages,
                "tools": None,
                "documents": None,
                "add_generation_prompt": prompt,
            }
        )


def fill(segments: Sequence[ChatPiece], contents: Sequence[str]) -> str:
    """The whole prompt as text, as the template itself would make it."""

    def text(piece: ChatPiece) -> str:
        if isinstance(piece, TemplatePiece):
            return piece.text
        content = contents[piece.index]
        return content.strip() if piece.strip else content

    return "".join(map(text, segments))


class _Slot(str):
    """Stands for a content in the template, which may place it, trim it and put text beside it.

    It counts as a text that is not empty; whether an empty one makes a difference is tried.
    """

    __slots__ = ()

    def strip(self, chars: str | None = None, /) -> _Slot:
        if chars is not None:
            _refuse_use("strips certain characters from")
        return _Slot(str.strip(self))

    def __add__(self, other: str, /) -> _Slot:
        return _Slot(str.__add__(self, other))

    def __radd__(self, other: str, /) -> _Slot:
        return _Slot(str.__add__(other, self))

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            _refuse_use("compares")
        return False

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__


def _trap(name: str) -> Callable[..., Any]:
    def trap(*_args: Any, **_named: Any) -> Any:
        _refuse_use(f"uses {name} of")

    return trap


def _refuse_use(what: str) -> None:
    raise ChatFormatError(f"the model's chat template {what} contents; it may only place or trim them")


_LOOKING: Final = (
    *("__contains__", "__getitem__", "__len__", "__lt__", "__le__", "__gt__", "__ge__"),
    *("__mod__", "__rmod__", "__mul__", "__rmul__", "__format__"),
)
for _name in (*_LOOKING, *(name for name in dir(str) if not name.startswith("_") and name != "strip")):
    setattr(_Slot, _name, _trap(_name))


@dataclass(frozen=True, slots=True)
class _StandIn:
    """A text nobody can guess, between white space nobody can guess: that shows whether it was trimmed."""

    before: str
    core: str
    after: str

    @classmethod
    def make(cls) -> _StandIn:
        return cls(_random_space(), f"Q{secrets.token_hex(16)}Z", _random_space())

    @property
    def slot(self) -> _Slot:
        return _Slot(self.before + self.core + self.after)


_SPACES: Final = bytes(b" \t\v\f"[byte % 4] for byte in range(256))


def _random_space() -> str:
    return secrets.token_bytes(32).translate(_SPACES).decode("ascii")


def _cut(output: str, stand_ins: Sequence[_StandIn]) -> tuple[ChatPiece, ...]:
    indices = {one.core: index for index, one in enumerate(stand_ins)}
    pieces: list[ChatPiece] = []
    end = 0
    for match in _CORE.finditer(output):
        index = indices.get(match[0])
        if index is None:
            continue
        one = stand_ins[index]
        padded = output.endswith(one.before, end, match.start()), output.startswith(one.after, match.end())
        if padded[0] != padded[1]:
            raise ChatFormatError(
                f"the model's chat template trims the content of message {index} on one side only"
            )
        start = match.start() - len(one.before) * padded[0]
        if start > end:
            pieces.append(TemplatePiece(output[end:start]))
        pieces.append(ContentPiece(index, strip=not padded[0]))
        end = match.end() + len(one.after) * padded[1]
    if end < len(output):
        pieces.append(TemplatePiece(output[end:]))
    _refuse_dropped(pieces, len(stand_ins))
    return tuple(pieces)


def _refuse_dropped(pieces: Sequence[ChatPiece], messages: int) -> None:
    placed = {piece.index for piece in pieces if isinstance(piece, ContentPiece)}
    dropped = [index for index in range(messages) if index not in placed]
    if dropped:
        raise ChatFormatError(f"the model's chat template leaves out the content of message {dropped[0]}")


def _default(settings: Mapping[str, Any]) -> str | None:
    """tokenizer_config.json's template; of several, the one named `default`."""
    found = settings.get("chat_template")
    if isinstance(found, list):
        found = {entry["name"]: entry["template"] for entry in found}.get("default")
    return found if isinstance(found, str) else None


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    made: dict[str, str] = {}
    for name in _SPECIAL:
        token = settings.get(name)
        text = token.get("content") if isinstance(token, dict) else token
        if isinstance(text, str):
            made[name] = text
    return made
