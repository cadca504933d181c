"""The batches that clients send: calls, values, and the parts of a graph that unfold as values come."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from parrot_gateway.new_calls import NewCall, NewCondition
from parrot_gateway.sent import Sent
from parrot_runtime import limits


class NewValue(Sent):
    """A variable that gets its value with a batch."""

    semantic_var_id: str
    value: str
    name: str = ""


class Separated(Sent):
    """What lies between a text, stripped, where it isn't blank."""

    separator: str = Field(min_length=1)


def _form(given: Any) -> str:
    return "<separator>" if isinstance(given, dict | Separated) else "<form>"


ListForm = Annotated[
    Annotated[Literal["json_array", "lines"], Tag("<form>")] | Annotated[Separated, Tag("<separator>")],
    Discriminator(_form),
]


class NewCollected(Sent):
    """An output of the body, of all items, in their order and without those that were skipped."""

    source: str = Field(alias="from", description="the body's name for it")
    semantic_var_id: str | None = Field(
        default=None, description="the id of the variable to make, by default a new one"
    )
    name: str = Field(default="", description="the output's name, by default the body's")
    joined_by: str | None = Field(
        default=None, description="what stands between the texts; by default they become a JSON array"
    )


class NewMap(Sent):
    """The body once for each item of a list. Its names are its own and come before the session's."""

    items: str = Field(alias="list", description="the variable that is the list")
    form: ListForm = Field(
        default="json_array",
        description='how it is one: "json_array" (texts as they are, anything else as JSON), "lines" (those '
        'that are not blank, stripped), or {"separator": text}',
    )
    item: str = Field(description="the body's name for the item")
    index: str = Field(default="", description="the body's name for its place, from 0; empty: none")
    body: list[NewCall] = Field(
        description=f"1 to {limits.BODY_CALLS} calls; what is no name of the body's is the session's"
    )
    collected: list[NewCollected] = Field(description="what comes of it")
    max_items: int | None = Field(
        default=None, ge=1, le=limits.MAP_ITEMS, description="a longer list fails the block"
    )


class NewCarried(Sent):
    """What goes from one round to the next."""

    body: str = Field(description="the body's name for it")
    initial: str = Field(description="what it is in the first round: a variable of the session")
    next: str = Field(description="what it is in the next: an output of the body")


class NewResult(Sent):
    """An output of the last round."""

    source: str = Field(alias="from", description="the body's name for it")
    semantic_var_id: str | None = Field(
        default=None, description="the id of the variable to make, by default a new one"
    )
    name: str = Field(default="", description="the output's name, by default the body's")


class NewLoop(Sent):
    """The body again and again, until its condition holds."""

    body: list[NewCall] = Field(
        description=f"1 to {limits.BODY_CALLS} calls; what is no name of the body's is the session's"
    )
    carried: list[NewCarried] = Field(default_factory=list, description="what goes from round to round")
    until: NewCondition = Field(description="about an output of the body")
    max_rounds: int = Field(ge=1, le=limits.LOOP_ROUNDS)
    results: list[NewResult] = Field(description="what comes of it")
    must_hold: bool = Field(
        default=False,
        description="rounds that are over while the condition doesn't hold fail the block; otherwise the "
        "results stand as they are",
    )


class NewSelect(Sent):
    """The first of several variables that was not skipped; skipped where all of them were."""

    source: list[str] = Field(alias="from", description="the variables, the preferred one first")
    semantic_var_id: str | None = Field(
        default=None, description="the id of the variable to make, by default a new one"
    )
    name: str = Field(default="", description="the output's name")


class NewBlock(Sent):
    """A part of the graph that unfolds as values come: one of map, loop and select."""

    name: str = Field(default="", description="for people")
    when: NewCondition | None = Field(
        default=None, description="the block unfolds only if this holds; otherwise it is skipped"
    )
    map: NewMap | None = None
    loop: NewLoop | None = None
    select: NewSelect | None = None

    @property
    def kind(self) -> Literal["map", "loop", "select"]:
        """Which of the three it is."""
        return "map" if self.map is not None else "loop" if self.loop is not None else "select"

    @model_validator(mode="after")
    def _one(self) -> NewBlock:
        if sum(kind is not None for kind in (self.map, self.loop, self.select)) != 1:
            raise ValueError("give one of map, loop and select")
        return self


class NewBatch(Sent):
    """Calls and blocks that are accepted together, or not at all."""

    calls: list[NewCall] = Field(default_factory=list)
    blocks: list[NewBlock] = Field(default_factory=list)
    variables: list[NewValue] = Field(default_factory=list)


_OF_CALLS = ("prompt", "messages", "native", "placeholders")
_OF_BATCHES = ("calls", "blocks", "variables")


def _shape(given: Any) -> str:
    if isinstance(given, NewCall):
        return "<single>"
    if not isinstance(given, dict) or any(name in given for name in _OF_BATCHES):
        return "<batch>"
    return "<single>" if any(name in given for name in _OF_CALLS) else "<batch>"


NewCalls = Annotated[
    Annotated[NewBatch, Tag("<batch>")] | Annotated[NewCall, Tag("<single>")], Discriminator(_shape)
]
