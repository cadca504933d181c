"""A run as a chat completion, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final

from parrot_gateway.events import EVENT_CHARS
from parrot_gateway.gateway import Gateway
from parrot_gateway.openai.logprobs import chat_logprobs, logprobs_of
from parrot_gateway.openai.runs import Done, News, Run, Text
from parrot_gateway.openai.tool_reader import CallArguments, CallBegun, CallEnded, Event, Reader, Said
from parrot_gateway.openai.toolbox import Toolbox
from parrot_gateway.openai.usage import usage_of
from parrot_proto.common.v1 import common_pb2

STOP: Final = "stop"


@dataclass(slots=True)
class Call:
    """A call that the assistant makes."""

    name: str
    arguments: str = ""


@dataclass(slots=True)
class _Choice:
    """How far one choice has come."""

    reader: Reader
    begun: bool = False
    calls: int = 0
    usage: common_pb2.Usage = field(default_factory=common_pb2.Usage)


class ChatNarrator:
    """See `Narrator`.

    Args:
        model: as the request names it.
        logprobs: they are told.
        usage: a stream tells of the tokens used.
    """

    def __init__(
        self, gateway: Gateway, run: Run, toolbox: Toolbox, *, model: str, logprobs: bool, usage: bool
    ) -> None:
        self._gateway = gateway
        self._run = run
        self._toolbox = toolbox
        self._model = model
        self._logprobs = logprobs
        self._usage = usage
        self._choices = [_Choice(toolbox.reader()) for _ in run.choices]
        self._named = False

    async def chunks(self, news: News) -> list[dict[str, Any]]:
        choice = self._choices[news.index]
        if isinstance(news, Text):
            events = choice.reader.feed(news.text)
            return [self._chunk(news.index, delta) for delta in self._deltas(news.index, choice, events)]
        deltas = self._deltas(news.index, choice, choice.reader.finish())
        choice.usage = news.usage
        made = [self._chunk(news.index, delta) for delta in deltas or self._role(choice)]
        return [
            *made,
            self._chunk(news.index, {}, self._reason(choice.calls, news), await self._tokens(news)),
        ]

    def last_chunks(self) -> Iterable[dict[str, Any]]:
        if self._usage:
            yield self._frame("chat.completion.chunk", [], usage_of([[one.usage for one in self._choices]]))

    async def whole(self, done: list[Done]) -> dict[str, Any]:
        choices = [await self._whole_choice(one) for one in done]
        return self._frame("chat.completion", choices, usage_of([[one.usage for one in done]]))

    async def _whole_choice(self, done: Done) -> dict[str, Any]:
        said, calls = read_whole(self._toolbox, done.text)
        message: dict[str, Any] = {
            "role": "assistant",
            "content": said if said or not calls else None,
            "refusal": None,
            "annotations": [],
        }
        if calls:
            message["tool_calls"] = [
                self._call(done.index, place, call.name, call.arguments) for place, call in enumerate(calls)
            ]
        return {
            "index": done.index,
            "message": message,
            "logprobs": await self._tokens(done),
            "finish_reason": self._reason(len(calls), done),
        }

    def _deltas(self, index: int, choice: _Choice, events: Iterable[Event]) -> list[dict[str, Any]]:
        deltas: list[dict[str, Any]] = []
        for event in only_allowed(self._toolbox, events):
            deltas += self._role(choice)
            if isinstance(event, Said):
                deltas += [{"content": text} for text in _cut(event.text)]
            elif isinstance(event, CallBegun):
                choice.calls += 1
                call = self._call(index, event.index, event.name, "")
                deltas.append({"tool_calls": [{"index": event.index, **call}]})
            elif isinstance(event, CallArguments):
                for text in _cut(event.text):
                    deltas.append({"tool_calls": [{"index": event.index, "function": {"arguments": text}}]})
        return deltas

    def _role(self, choice: _Choice) -> list[dict[str, Any]]:
        if choice.begun:
            return []
        choice.begun = True
        return [{"role": "assistant", "content": "", "refusal": None}]

    def _call(self, index: int, place: int, name: str, arguments: str) -> dict[str, Any]:
        return {
            "id": call_id(self._run, index, place),
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }

    def _reason(self, calls: int, done: Done) -> str:
        if done.reason == "length":
            return done.reason
        # Where the client named the function, OpenAI says stop.
        return "tool_calls" if calls and self._toolbox.mode != "named" else STOP

    async def _tokens(self, done: Done) -> dict[str, Any] | None:
        if not self._logprobs:
            return None
        return chat_logprobs(await logprobs_of(self._gateway, self._run, done))

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        reason: str | None = None,
        logprobs: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return self._frame("chat.completion.chunk", [choice], None)

    def _frame(
        self, kind: str, choices: list[dict[str, Any]], usage: dict[str, Any] | None
    ) -> dict[str, Any]:
        frame: dict[str, Any] = {
            "id": f"chatcmpl-{self._run.id}",
            "object": kind,
            "created": self._run.created_unix_ms // 1000,
            "model": self._model,
            "choices": choices,
        }
        if not self._named:
            self._named = True
            frame["parrot"] = parrot_member(self._run)
        if usage is not None or self._usage:
            frame["usage"] = usage
        return frame


def parrot_member(run: Run) -> dict[str, Any]:
    """Where the graph has what an answer tells; of a stream the first chunk says it."""
    return {"session_id": run.session_id, "outputs": [choice.variable_id for choice in run.choices]}


def call_id(run: Run, choice: int, place: int) -> str:
    """A call's id: the same whenever and wherever the answer is told."""
    told = f"{run.session_id}/{run.choices[choice].variable_id}/{place}"
    return f"call_{blake2b(told.encode(), digest_size=12).hexdigest()}"


def read_whole(toolbox: Toolbox, text: str) -> tuple[str, list[Call]]:
    """What a whole text says, and the calls it makes."""
    reader = toolbox.reader()
    said: list[str] = []
    calls: list[Call] = []
    for event in only_allowed(toolbox, [*reader.feed(text), *reader.finish()]):
        if isinstance(event, Said):
            said.append(event.text)
        elif isinstance(event, CallBegun):
            calls.append(Call(event.name))
        elif isinstance(event, CallArguments):
            calls[event.index].arguments += event.text
    return "".join(said), calls


def only_allowed(toolbox: Toolbox, events: Iterable[Event]) -> Iterable[Event]:
    """Without further calls where there may be only one."""
    for event in events:
        if toolbox.several or not isinstance(event, CallBegun | CallArguments | CallEnded) or not event.index:
            yield event


def _cut(text: str) -> list[str]:
    """Text of at most so many characters an event; readers have line buffers."""
    return [text[start : start + EVENT_CHARS] for start in range(0, len(text), EVENT_CHARS)]
