"""The calls that clients send: their placeholders, their conditions, and who runs them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, model_validator

from parrot_gateway.sampling import SamplingSettings, Schema
from parrot_gateway.sent import NewCriteria, Sent, TextList
from parrot_runtime import limits

LONGEST_NATIVE_S = 86_400


def _direction(given: object) -> object:
    if isinstance(given, bool):
        return "in" if given else "out"
    return {"input": "in", "output": "out"}.get(given, given) if isinstance(given, str) else given


class NewPlaceholder(Sent):
    """What stands in for a hole of the template."""

    name: str = Field(description="the hole's name", examples=["task"])
    in_out: Annotated[
        Literal["in", "out"],
        BeforeValidator(_direction, json_schema_input_type=Literal["in", "out", "input", "output"] | bool),
    ] = Field(description='"in" or "out"; "input" and true read as "in", "output" and false as "out"')
    semantic_var_id: str | None = Field(
        default=None,
        description="in: the variable to read; out: the id of the variable to make, by default a new one, "
        "or in a block's body the placeholder's name",
    )
    value: str | None = Field(default=None, description="in: a text, instead of a variable")
    transforms: TextList = Field(
        default_factory=list,
        description="applied to the whole text, in order: strip, first_line, lower, upper, "
        "split:<separator>:<index>, regex:<pattern> (RE2; the group named value, or the first, or all of "
        "the match), json:<path>, join:<separator>. An output that has some is not streamed.",
        examples=[["strip"], ["regex:(?s)```json\\n(.*?)```", "json:answers[0].text"]],
    )
    sampling: SamplingSettings | None = Field(default=None, description="out: how it is generated")
    criteria: NewCriteria | None = Field(
        default=None,
        description="out: it will be read, and what is wanted of it then; by default what the session says. "
        "Not in a block's body",
    )


class NewCondition(Sent):
    """A question about a variable's value, asked when it is there: one of the tests.

    Where a transform does not apply to the value it does not hold, negated or not. Where the variable was
    skipped, so is who asks.
    """

    semantic_var_id: str = Field(description="the variable it is about")
    transforms: TextList = Field(default_factory=list, description="applied to the value first")
    equals: str | None = Field(default=None, description="the text is this one")
    contains: str | None = Field(default=None, description="the text has this in it")
    matches: str | None = Field(default=None, description="a regular expression (RE2), anywhere in the text")
    json_schema: Schema | None = Field(
        default=None,
        description="the text is JSON that this schema (draft 2020-12) admits: an object, or its JSON text",
    )
    empty: Literal[True] | None = Field(default=None, description="the text has no characters")
    is_json: Literal[True] | None = Field(default=None, description="the text is JSON")
    negate: bool = Field(default=False, description="turns the answer round")

    @property
    def test(self) -> tuple[str, str | bool]:
        """The test's name, and what it compares with."""
        return next((name, asked) for name, asked in self._tests().items() if asked is not None)

    @model_validator(mode="after")
    def _one(self) -> NewCondition:
        tests = self._tests()
        if sum(asked is not None for asked in tests.values()) != 1:
            raise ValueError(f"give one of {', '.join(tests)}")
        return self

    def _tests(self) -> dict[str, str | bool | None]:
        return {
            "equals": self.equals,
            "contains": self.contains,
            "matches": self.matches,
            "json_schema": self.json_schema,
            "empty": self.empty,
            "is_json": self.is_json,
        }


class ClientRun(Sent):
    """The client runs it: a worker claims the call when its inputs are there, and hands in its outputs."""

    kind: Literal["client"]
    timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=LONGEST_NATIVE_S,
        description="how long the call waits for a worker once its inputs are there, before it fails",
    )


class SandboxRun(Sent):
    """The server runs it, in a sandbox, if its operator lets it."""

    kind: Literal["sandbox"]
    source: str = Field(
        description=f"Python that defines the function, at most {limits.NATIVE_SOURCE_BYTES:,} bytes",
        examples=["def shout(text):\n    return text.upper()\n"],
    )
    entry: str = Field(
        description="the function's name; it gets the inputs as keyword arguments, each a str, and returns "
        "the output's str, or of several outputs a dict from name to str"
    )
    timeout_s: float = Field(
        default=1.0, gt=0, le=limits.SANDBOX_S, description="how long it may run before it is stopped"
    )
    memory_bytes: int | None = Field(
        default=None,
        ge=limits.MIB,
        le=limits.SANDBOX_BYTES,
        description=f"how much memory it may take; by default {limits.SANDBOX_DEFAULT_BYTES:,}",
    )


def _native_kind(given: Any) -> str:
    found = given.get("kind") if isinstance(given, dict) else getattr(given, "kind", None)
    return "<sandbox>" if found == "sandbox" else "<client>"


Native = Annotated[
    Annotated[ClientRun, Tag("<client>")] | Annotated[SandboxRun, Tag("<sandbox>")],
    Discriminator(_native_kind),
]


class NewMessage(Sent):
    """A message of a chat, in the model's own format."""

    role: str = Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$",
        description="system, user, assistant, or another that the model's format knows",
        examples=["user"],
    )
    content: str = Field(
        description="a template with the same holes as a prompt; plain text, whatever it looks like",
        examples=["Summarize: {{text}}"],
    )


class NewCall(Sent):
    """A semantic function call."""

    prompt: str | None = Field(
        default=None,
        description="the template: {{name}}, {{input:name}} or {{output:name}} is a hole, "
        "{{'{{'}} stands for two literal braces",
        examples=["Summarize: {{input:text}}\nSummary: {{output:summary}}"],
    )
    messages: list[NewMessage] | None = Field(
        default=None,
        description="a chat, instead of a prompt: outputs stand in the last message, which is the "
        "assistant's; an only output that no message names is the answer to them all",
    )
    native: Native | None = Field(
        default=None, description="code makes the outputs, and no model; instead of a prompt"
    )
    placeholders: list[NewPlaceholder] = Field(description="one for each name in the template")
    name: str = Field(default="", description="the function's name; for people and statistics")
    model: str = Field(default="", description="the model to use; empty: any")
    when: NewCondition | None = Field(
        default=None, description="the call runs only if this holds; otherwise it is skipped, cancelled"
    )

    @model_validator(mode="after")
    def _one(self) -> NewCall:
        if [self.prompt, self.messages, self.native].count(None) != 2:
            raise ValueError("give one of prompt, messages and native")
        return self
