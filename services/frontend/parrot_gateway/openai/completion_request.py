"""What a client asks for: the body of POST /v1/completions.

A prompt is the caller's own template text: control tokens of the model that it spells are control tokens.
What is not to be trusted goes into messages, or into a variable.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Discriminator, Field, Tag, model_validator

from parrot.template import Hole
from parrot_gateway.openai.agents import Place
from parrot_gateway.openai.conversation import check_read, hole_segment, pieces_of
from parrot_gateway.openai.generation import Generation
from parrot_gateway.openai.members import Absent
from parrot_gateway.openai.plans import Prompt, plan_of
from parrot_gateway.openai.runs import Plan
from parrot_gateway.sampling import TokenId
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_text, too_large

NAME: Final = "completion"
"""What calls of completions are called."""
DEFAULT_TOKENS: Final = 16
"""OpenAI's."""
PROMPTS: Final = 2_048

Tokens = list[TokenId]


def _prompt_kind(given: object) -> str:
    if not isinstance(given, list):
        return "<text>"
    first = given[0] if given else ""
    if isinstance(first, list):
        return "<token_lists>"
    return "<texts>" if isinstance(first, str) else "<tokens>"


AnyPrompt = Annotated[
    Annotated[str, Tag("<text>")]
    | Annotated[list[str], Tag("<texts>")]
    | Annotated[Tokens, Tag("<tokens>")]
    | Annotated[list[Tokens], Tag("<token_lists>")],
    Discriminator(_prompt_kind),
]


class NewCompletion(Generation):
    """Prompts to be gone on after."""

    prompt: AnyPrompt = Field(description="a text or its tokens' numbers, or a list of either")
    echo: bool | None = Field(default=None, description="the answer begins with the prompt, a text")
    logprobs: int | None = Field(
        default=None, ge=0, le=limits.LOGPROBS, description="of the answer; of a stream with its last chunk"
    )
    best_of: int | None = Field(default=None, ge=1, description="as n; the best of more are not looked for")
    suffix: Absent = None

    @model_validator(mode="after")
    def _together(self) -> NewCompletion:
        if self.best_of is not None and self.best_of != self.choices:
            raise ValueError("best_of is n here: all choices that are made are told")
        if self.echo and self.logprobs is not None:
            raise ValueError("echo tells no logprobs of the prompt here; leave one of the two out")
        if self.echo and not all(isinstance(prompt, str) for prompt in self.prompts):
            raise ValueError("echo takes prompts that are texts")
        return self

    @property
    def prompts(self) -> list[str | Tokens]:
        """Each prompt."""
        if isinstance(self.prompt, str):
            return [self.prompt]
        tokens = [token for token in self.prompt if isinstance(token, int)]
        return [tokens] if tokens else [one for one in self.prompt if not isinstance(one, int)]


def plan_completion(
    body: NewCompletion,
    key: str,
    *,
    digest: str = "",
    place: Place,
    criteria: manager_pb2.Criteria | None = None,
) -> Plan:
    """The calls that go on after each prompt; see `plan_of`.

    Raises:
        Fault: what is wrong with it, with the path of the field.
    """
    body.check()
    prompts = body.prompts
    if not prompts:
        raise Fault(errors.INVALID_REQUEST, "prompt: send at least one", field="prompt")
    if len(prompts) * body.choices > PROMPTS:
        raise too_large("prompt", len(prompts) * body.choices, PROMPTS, unit="texts to make")
    if body.parrot is not None and body.parrot.output is not None and len(prompts) > 1:
        raise Fault(errors.INVALID_REQUEST, "parrot.output: one variable holds one choice", field="prompt")
    inputs = body.parrot.inputs if body.parrot is not None else {}
    unread = set(inputs)
    several = isinstance(body.prompt, list) and not isinstance(body.prompt[0], int)
    made = [
        _prompt(prompt, f"prompt[{index}]" if several else "prompt", inputs, unread)
        for index, prompt in enumerate(prompts)
    ]
    check_read(unread)
    sampling = body.sampling(body.max_tokens or DEFAULT_TOKENS, body.logprobs)
    return plan_of(
        made,
        sampling,
        name=NAME,
        model=body.model,
        key=key,
        digest=digest,
        choices=body.choices,
        joining=body.parrot,
        place=place,
        criteria=criteria,
    )


def _prompt(prompt: str | Tokens, where: str, inputs: dict[str, str], unread: set[str]) -> Prompt:
    if not isinstance(prompt, str):
        if not prompt:
            raise Fault(errors.INVALID_REQUEST, f"{where}: it has no tokens", field=where)
        return [common_pb2.Segment(tokens=common_pb2.TokenIds(ids=prompt), private=True)]
    check_text(prompt, where, limit_bytes=limits.TEMPLATE_BYTES)
    if not prompt:
        raise Fault(
            errors.INVALID_REQUEST, f"{where}: it is empty; there is nothing to go on after", field=where
        )
    made: list[common_pb2.Segment] = []
    for piece in pieces_of(prompt, where, inputs):
        if isinstance(piece, Hole):
            unread.discard(piece.name)
            made.append(hole_segment(piece, inputs))
        else:
            made.append(common_pb2.Segment(text=piece.text, private=True))
    return made
