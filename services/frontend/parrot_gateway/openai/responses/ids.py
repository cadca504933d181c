"""A response's id, and all the ids that follow from it.

It names the session the response lives in, so that any gateway finds it without a table. The ids of its
items and tool calls follow from it too: whoever tells it again, elsewhere or later, tells the same.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from parrot_runtime.ids import is_session_id

KEY_BYTES: Final = 8

_RESPONSE: Final = re.compile(r"resp_([0-9a-z]{18})([0-9a-f]{16})")
_ITEM: Final = re.compile(r"(?:msg|fc)_([0-9a-z]{18})([0-9a-f]{16})(in|out)(0|[1-9][0-9]{0,5})")


@dataclass(frozen=True, slots=True)
class ResponseId:
    """Which response.

    Attributes:
        session_id: where it lives.
        token: which of the session's, 16 hex digits.
    """

    session_id: str
    token: str

    @classmethod
    def made_of(cls, session_id: str, key: str) -> ResponseId:
        """The id of the response that a request with this key makes in a session."""
        return cls(session_id, blake2b(f"response/{key}".encode(), digest_size=KEY_BYTES).hexdigest())

    @classmethod
    def parse(cls, text: str) -> ResponseId | None:
        """The id that `text` spells; None: it is none of ours."""
        match = _RESPONSE.fullmatch(text)
        return cls._of(match[1], match[2]) if match is not None else None

    @classmethod
    def _of(cls, place: str, token: str) -> ResponseId | None:
        session_id = f"s{place[:2]}-{place[2:]}"
        return cls(session_id, token) if is_session_id(session_id) else None

    def __str__(self) -> str:
        return f"resp_{self._tail}"

    @property
    def request_variable(self) -> str:
        """The variable that holds what was asked for."""
        return f"resp-{self.token}-request"

    @property
    def text_variable(self) -> str:
        """The variable that holds what the model wrote, where the client names none."""
        return f"resp-{self.token}-text"

    def input_id(self, index: int) -> str:
        """The id of an input item that came without one."""
        return f"msg_{self._tail}in{index}"

    def output_id(self, prefix: str, index: int) -> str:
        """The id of an output item; `prefix` is `msg` or `fc`."""
        return f"{prefix}_{self._tail}out{index}"

    def call_id(self, index: int) -> str:
        """The id by which a tool's output answers the call in an output item."""
        return f"call_{blake2b(f'{self}/{index}'.encode(), digest_size=12).hexdigest()}"

    @property
    def _tail(self) -> str:
        return f"{self.session_id[1:3]}{self.session_id[4:]}{self.token}"


def response_of_item(item_id: str) -> ResponseId | None:
    """The response that an item's id belongs to; None: it is no id that was made here."""
    match = _ITEM.fullmatch(item_id)
    return ResponseId.parse(f"resp_{match[1]}{match[2]}") if match is not None else None
