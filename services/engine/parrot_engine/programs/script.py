"""A program as steps: its shape checked, its constant text turned into tokens.

A step fills parts, which are tokens or a variable still to be read, or generates an output. What a
program lacks to be run is known from here on: the values of its variables.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from parrot_engine.programs.chats import ChatFills
from parrot_engine.programs.parts import Part, check_transforms, variable_part
from parrot_engine.text.chat import ChatFormatError, ContentPiece
from parrot_engine.text.tokens import PromptTokenizer
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors, transforms
from parrot_runtime.errors import Fault
from parrot_runtime.transforms import TransformError

INLINE_CHARS: Final = 16_384
"""Longer texts are tokenized off the event loop."""


INLINE_MESSAGES: Final = 16
"""Longer chats are put into the model's format off the event loop."""

INLINE_TRANSFORM_CHARS: Final = 1024
"""Longer texts are transformed off the event loop: a large pattern takes microseconds a character."""

_OF_CHATS: Final = frozenset({"chat_turn", "plain_text", "variable"})


@dataclass(frozen=True, slots=True)
class FillStep:
    """Parts to append to a context; `shared` when the context is every program's."""

    context_id: str
    parent_context_id: str
    parts: tuple[Part, ...]
    shared: engine_pb2.SharedFill | None = None


@dataclass(frozen=True, slots=True)
class GenerateStep:
    """An output to generate, or several from the same prompt.

    Attributes:
        outputs: where each is written; the first in the context itself, the others in forks of it.
        resumed: tokens of the text that was streamed before.
        continued: later steps use the context.
    """

    context_id: str
    parent_context_id: str
    sampling: common_pb2.Sampling
    outputs: tuple[engine_pb2.VariableSink, ...]
    streamed_text: str = ""
    resumed: tuple[int, ...] = ()
    continued: bool = False


Step = FillStep | GenerateStep


@dataclass(frozen=True, slots=True)
class Script:
    """A program's steps, in order."""

    steps: tuple[Step, ...]

    def parts(self) -> Iterable[Part]:
        """Every part of every fill."""
        for step in self.steps:
            if isinstance(step, FillStep):
                yield from step.parts

    def shared_before(self, step: FillStep) -> tuple[str, ...]:
        """The shared contexts that a step's context was forked from, the nearest first."""
        shared = {one.context_id: one for one in self.steps if isinstance(one, FillStep) and one.shared}
        found: list[str] = []
        parent = shared.get(step.parent_context_id)
        while parent is not None and parent.context_id not in found:
            found.append(parent.context_id)
            parent = shared.get(parent.parent_context_id)
        return tuple(found)

    def shared_after(self, step: FillStep) -> tuple[FillStep, ...]:
        """The fills of shared contexts that are forked from a step's."""
        return tuple(
            one
            for one in self.steps
            if isinstance(one, FillStep) and one.shared and one.parent_context_id == step.context_id
        )

    def context_ids(self) -> set[str]:
        """The contexts that are the program's own."""
        shared = {step.context_id for step in self.steps if isinstance(step, FillStep) and step.shared}
        return {step.context_id for step in self.steps} - shared


async def read_script(
    program: engine_pb2.RunProgram, tokenizer: PromptTokenizer, *, share: bool = True
) -> Script:
    """The program's steps.

    Args:
        share: False: contexts that are meant to be every program's are this program's own.

    Raises:
        Fault: `transform_failed`, or `engine_error` for a program that is not well formed.
    """
    if not share:
        program = _unshared(program, 0)
    if _constant_chars(program) <= INLINE_CHARS and len(program.chat_roles) <= INLINE_MESSAGES:
        return _Reader(program, tokenizer).script()
    return await asyncio.to_thread(_Reader(program, tokenizer).script)


def apply_transforms(text: str, names: Sequence[str], variable_id: str) -> str:
    """`text` transformed.

    Raises:
        Fault: `transform_failed`.
    """
    try:
        return transforms.apply(text, names)
    except TransformError as error:
        raise Fault(errors.TRANSFORM_FAILED, str(error), variable_id=variable_id) from None


async def transformed(text: str, names: Sequence[str], variable_id: str) -> str:
    """As `apply_transforms`, off the event loop if that may take long."""
    if not names or len(text) <= INLINE_TRANSFORM_CHARS:
        return apply_transforms(text, names, variable_id)
    return await asyncio.to_thread(apply_transforms, text, names, variable_id)


def malformed(what: str) -> Fault:
    """The fault of a program that no manager of this version sends."""
    return Fault(errors.ENGINE_ERROR, f"the program has {what}; are manager and engine of one version?")


def _unshared(program: engine_pb2.RunProgram, first: int) -> engine_pb2.RunProgram:
    """The program with its shared contexts, from one operation on, under names of its own."""
    found = engine_pb2.RunProgram()
    found.CopyFrom(program)
    ref = program.ref
    names: dict[str, str] = {}
    for operation in found.operations[first:]:
        if operation.fill.HasField("shared"):
            shared_id = operation.fill.context_id
            names[shared_id] = f"{ref.session_id}/{ref.call_id}/{ref.attempt}/{shared_id}"
            operation.fill.ClearField("shared")
        task = operation.fill if operation.WhichOneof("kind") == "fill" else operation.generate
        task.context_id = names.get(task.context_id, task.context_id)
        task.parent_context_id = names.get(task.parent_context_id, task.parent_context_id)
    return found


def _constant_chars(program: engine_pb2.RunProgram) -> int:
    chars = 0
    for operation in program.operations:
        chars += len(operation.fill.template_text) + len(operation.fill.plain_text)
        chars += len(operation.generate.streamed_text)
        chars += sum(len(message.constant) + len(message.text) for message in operation.fill.chat.messages)
    return chars


@dataclass(slots=True)
class _Reader:
    """Turns operations into steps; see `read_script`."""

    program: engine_pb2.RunProgram
    tokenizer: PromptTokenizer
    made: set[str] = field(default_factory=set)
    chat: ChatFills | None = None

    def script(self) -> Script:
        program = self.program
        if program.chat_roles:
            self.chat = ChatFills(program, self.tokenizer)
            program = _unshared(program, self.chat.own_from())
        steps = [self._step(number, operation) for number, operation in enumerate(program.operations)]
        return Script(_continued(steps))

    def _step(self, number: int, operation: engine_pb2.Operation) -> Step:
        kind = operation.WhichOneof("kind")
        if kind is None:
            raise malformed("an operation of a kind this engine does not know")
        task = operation.fill if kind == "fill" else operation.generate
        if task.context_id not in self.made and task.parent_context_id not in ("", *self.made):
            raise malformed(f"a fork of {task.parent_context_id}, a context it did not make")
        self.made.add(task.context_id)
        return self._fill(number, operation.fill) if kind == "fill" else self._generate(operation.generate)

    def _fill(self, number: int, fill: engine_pb2.Fill) -> FillStep:
        return FillStep(
            fill.context_id,
            fill.parent_context_id,
            tuple(self._parts(number, fill)),
            fill.shared if fill.HasField("shared") else None,
        )

    def _parts(self, number: int, fill: engine_pb2.Fill) -> Iterable[Part]:
        kind = fill.WhichOneof("content")
        if self.chat is not None and kind in _OF_CHATS:
            yield from self.chat.parts(number, fill)
        elif kind == "template_text":
            token_ids = self.tokenizer.encode_template(fill.template_text)
            yield Part(tuple(token_ids), private=fill.private)
        elif kind == "plain_text":
            yield Part(tuple(self.tokenizer.encode_value(fill.plain_text)), private=fill.private)
        elif kind == "tokens":
            yield self._tokens(fill.tokens.ids)
        elif kind == "variable":
            yield variable_part(fill.variable)
        elif kind == "chat":
            yield from self._chat(fill.chat)
        else:
            raise malformed("a fill of a kind this engine does not know")

    def _tokens(self, token_ids: Sequence[int]) -> Part:
        beyond = max(token_ids, default=0)
        if beyond >= self.tokenizer.vocabulary_tokens:
            raise Fault(
                errors.INVALID_REQUEST,
                f"token {beyond:,} is none of the model's {self.tokenizer.vocabulary_tokens:,}",
            )
        return Part(tuple(token_ids), private=True)

    def _chat(self, chat: engine_pb2.Chat) -> Iterable[Part]:
        chat_format = self.tokenizer.chat_format
        if chat_format is None:
            raise Fault(errors.ENGINE_ERROR, "the model has no chat format; send a template")
        roles = [message.role for message in chat.messages]
        try:
            pieces = chat_format.segments(roles, add_generation_prompt=chat.add_generation_prompt)
        except ChatFormatError as error:
            raise Fault(errors.INVALID_REQUEST, f"the model's chat format refuses this: {error}") from None
        for piece in pieces:
            if isinstance(piece, ContentPiece):
                yield self._content(chat.messages[piece.index], strip=piece.strip)
            else:
                yield Part(tuple(self.tokenizer.encode_template(piece.text)))

    def _content(self, message: engine_pb2.ChatMessage, *, strip: bool) -> Part:
        kind = message.WhichOneof("content")
        if kind == "variable":
            return variable_part(message.variable, *(("strip",) if strip else ()))
        text = message.constant if kind == "constant" else message.text
        token_ids = self.tokenizer.encode_value(text.strip() if strip else text)
        return Part(tuple(token_ids), private=kind != "constant")

    def _generate(self, task: engine_pb2.Generate) -> GenerateStep:
        outputs = (task.output, *task.alternatives)
        for output in outputs:
            check_transforms(output.transforms, output.variable_id)
        if task.streamed_text and len(outputs) > 1:
            raise Fault(errors.NOT_RESUMABLE, "one of several alternatives can't go on by itself")
        return GenerateStep(
            task.context_id,
            task.parent_context_id,
            task.sampling,
            outputs,
            task.streamed_text,
            tuple(self.tokenizer.encode_value(task.streamed_text)) if task.streamed_text else (),
        )


def _continued(steps: list[Step]) -> tuple[Step, ...]:
    """The steps, each output told whether its context is used after it."""
    used: set[str] = set()
    marked: list[Step] = []
    for step in reversed(steps):
        if isinstance(step, GenerateStep):
            marked.append(replace(step, continued=step.context_id in used))
        else:
            marked.append(step)
        used |= {step.context_id, step.parent_context_id}
    return tuple(reversed(marked))
