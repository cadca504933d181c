"""Items as the prompt of a call: the chat's messages, of which only the request's own may be templates."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from parrot_gateway.openai.conversation import Piece, segments_of, turns_of
from parrot_gateway.openai.members import CalledFunction, ChatMessage, MadeCall
from parrot_gateway.openai.responses.items import CallItem, CallOutputItem, Item, MessageItem, text_of
from parrot_proto.common.v1 import common_pb2
from parrot_runtime.errors import Fault

_MESSAGE: Final = re.compile(r"messages\[(\d+)\]")


@dataclass(slots=True)
class Conversation:
    """Messages, and where in the request each comes from; empty: from a response before it."""

    messages: list[ChatMessage] = field(default_factory=list)
    places: list[str] = field(default_factory=list)

    def instruct(self, instructions: str | None) -> None:
        """Adds what the request says to the model before all else."""
        if instructions is not None:
            self._add(ChatMessage(role="system", content=instructions), "instructions")

    def add(self, items: Sequence[Item], places: Sequence[str] = ()) -> None:
        """Adds items; `places`: where in the request each of them stands."""
        for item, where in zip(items, places or [""] * len(items), strict=True):
            if isinstance(item, MessageItem):
                self._add(ChatMessage(role=item.role, content=text_of(item.content)), where)
            elif isinstance(item, CallItem):
                self._add_call(item, where)
            elif isinstance(item, CallOutputItem):
                message = ChatMessage(role="tool", tool_call_id=item.call_id, content=text_of(item.output))
                self._add(message, where)

    def segments(self, told: str, inputs: Mapping[str, str]) -> list[common_pb2.Segment]:
        """The prompt, up to where the model answers.

        Args:
            told: what the model is told of its tools.
            inputs: names of holes in the request's own texts, and the variables they stand for.

        Raises:
            Fault: what is wrong with a text, with its place in the request.
        """
        try:
            turns = turns_of(self.messages, told)
            for turn in turns:
                turn.pieces = [self._placed(piece) for piece in turn.pieces]
            return segments_of(turns, inputs)
        except Fault as fault:
            raise self._located(fault) from None

    def _placed(self, piece: Piece) -> Piece:
        match = _MESSAGE.match(piece.where)
        # What the model or another request said is no template.
        return piece if match is None else replace(piece, where=self.places[int(match[1])])

    def _located(self, fault: Fault) -> Fault:
        match = _MESSAGE.match(fault.field)
        if match is None and fault.field != "messages":
            return fault
        where = (self.places[int(match[1])] if match is not None else "") or "input"
        return Fault(fault.kind, fault.message.replace(fault.field, where, 1), field=where)

    def _add(self, message: ChatMessage, where: str) -> None:
        self.messages.append(message)
        self.places.append(where)

    def _add_call(self, item: CallItem, where: str) -> None:
        """Calls that follow what the assistant says, or one another, are one message's."""
        call = MadeCall(id=item.call_id, function=CalledFunction(name=item.name, arguments=item.arguments))
        last = self.messages[-1] if self.messages else None
        if last is not None and last.role == "assistant":
            calls = [*(last.tool_calls or ()), call]
            self.messages[-1] = last.model_copy(update={"tool_calls": calls})
        else:
            self._add(ChatMessage(role="assistant", tool_calls=[call]), where)
