"""What a block or a call has to know about values, and the answers.

Values are large and questions may take a second, so the machine asks and goes on: whoever has the
values answers, in its own time, and the answer returns as an event.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parrot_manager.core.blocks import lists
from parrot_manager.core.blocks.definitions import Listing
from parrot_manager.core.conditions import Condition, UndecidedError, holds
from parrot_runtime.transforms import NotApplicableError


@dataclass(frozen=True, slots=True)
class Holds:
    """Does a condition hold? Answered with `Verdict`."""

    condition: Condition

    @property
    def variable_ids(self) -> tuple[str, ...]:
        """The values it takes to answer."""
        return (self.condition.variable_id,)


@dataclass(frozen=True, slots=True)
class Items:
    """What are the items of a list, if there are at most so many? Answered with `Texts`."""

    variable_id: str
    listing: Listing
    at_most: int

    @property
    def variable_ids(self) -> tuple[str, ...]:
        """The values it takes to answer."""
        return (self.variable_id,)


@dataclass(frozen=True, slots=True)
class Collection:
    """What do these values make together? Answered with `Texts`, of one."""

    variable_ids: tuple[str, ...]
    joined_by: str | None


@dataclass(frozen=True, slots=True)
class Copy:
    """What is this value? Answered with `Texts`, of one."""

    variable_id: str

    @property
    def variable_ids(self) -> tuple[str, ...]:
        """The values it takes to answer."""
        return (self.variable_id,)


Question = Holds | Items | Collection | Copy


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a condition holds."""

    holds: bool


@dataclass(frozen=True, slots=True)
class Texts:
    """Texts, in UTF-8."""

    data: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class TooMany:
    """A list has more items than may be."""


@dataclass(frozen=True, slots=True)
class Unanswerable:
    """There is no answer, and there never will be; says why, and nothing of the values."""

    why: str


Answer = Verdict | Texts | TooMany | Unanswerable


def answer(question: Question, values: Mapping[str, bytes]) -> Answer:
    """The answer to a question, given the values it takes. A second or so at the worst."""
    try:
        return _answer(question, values)
    except (NotApplicableError, UndecidedError) as error:
        return Unanswerable(str(error))


def _answer(question: Question, values: Mapping[str, bytes]) -> Answer:
    texts = [values[variable_id].decode() for variable_id in question.variable_ids]
    if isinstance(question, Holds):
        return Verdict(holds(question.condition, texts[0]))
    if isinstance(question, Items):
        items = lists.split(texts[0], question.listing, question.at_most)
        return TooMany() if len(items) > question.at_most else Texts(tuple(map(str.encode, items)))
    if isinstance(question, Collection):
        return Texts((lists.join(texts, question.joined_by).encode(),))
    return Texts((values[question.variable_id],))
