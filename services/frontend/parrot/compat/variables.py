"""Variables as the prototype's programs ask about them."""

from __future__ import annotations

import itertools
from typing import Any

from parrot.errors import SessionError
from parrot.text import check_text
from parrot.variable import SemanticVariable as OurVariable

_numbers = itertools.count()


class SemanticVariable(OurVariable[Any]):
    """A variable of this SDK, with what the prototype's tells of itself."""

    @property
    def is_ready(self) -> bool:
        """Whether its text is here."""
        return self.content is not None

    @property
    def ready(self) -> bool:
        """As `is_ready`."""
        return self.is_ready

    @property
    def is_registered(self) -> bool:
        """Whether it belongs to a session."""
        return self._session is not None

    def assign_id(self, id: str) -> None:  # noqa: A002 - the prototype's signature
        """Gives it another id, before a call has it.

        Raises:
            SessionError: a call has it.
            InvalidText: `id` holds a lone surrogate.
        """
        if self._session is not None or self._body is not None:
            raise SessionError(f"{self!r} belongs to a session, which knows it by its id")
        self.id = check_text(id, "the id of a variable")


def variable(name: str | None = None, content: str | None = None) -> SemanticVariable:
    """A new variable: with `content`, a text to pass to calls; without, one to `set` later, or to pass
    as the output of a call. Without a name it is called `var_0`, `var_1`, and so on.

    Raises:
        InvalidText: `name` or `content` holds a lone surrogate.
    """
    return SemanticVariable(f"var_{next(_numbers)}" if name is None else name, content)
