"""A run as a completion, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from parrot_gateway.events import EVENT_CHARS
from parrot_gateway.gateway import Gateway
from parrot_gateway.openai.chat_answer import parrot_member
from parrot_gateway.openai.completion_request import NewCompletion
from parrot_gateway.openai.logprobs import completion_logprobs, logprobs_of
from parrot_gateway.openai.runs import Done, News, Run, Text
from parrot_gateway.openai.usage import usage_of
from parrot_proto.common.v1 import common_pb2


class CompletionNarrator:
    """See `Narrator`. Choices are counted through all prompts, each prompt's one after the other."""

    def __init__(self, gateway: Gateway, run: Run, asked: NewCompletion) -> None:
        self._gateway = gateway
        self._run = run
        self._asked = asked
        self._echoes = [self._echo(place) for place in range(len(run.choices))]
        self._usages = [common_pb2.Usage() for _ in run.choices]
        self._named = False

    async def chunks(self, news: News) -> list[dict[str, Any]]:
        made = []
        if self._echoes[news.index]:
            echo, self._echoes[news.index] = self._echoes[news.index], ""
            made = [self._chunk(news.index, text) for text in _cut(echo)]
        if isinstance(news, Text):
            return made + [self._chunk(news.index, text) for text in _cut(news.text)]
        self._usages[news.index] = news.usage
        last = self._choice(news.index, "", _reason(news), await self._tokens(news, 0))
        return [*made, self._frame([last], None)]

    def last_chunks(self) -> Iterable[dict[str, Any]]:
        if self._asked.wants_usage:
            yield self._frame([], self._usage(self._usages))

    async def whole(self, done: list[Done]) -> dict[str, Any]:
        choices = []
        for one in done:
            echo = self._echoes[one.index]
            logprobs = await self._tokens(one, len(echo))
            choices.append(self._choice(one.index, echo + one.text, _reason(one), logprobs))
        return self._frame(choices, self._usage([one.usage for one in done]))

    def _echo(self, index: int) -> str:
        prompt = self._asked.prompts[index // self._asked.choices] if self._asked.echo else ""
        return prompt if isinstance(prompt, str) else ""

    def _usage(self, usages: list[common_pb2.Usage]) -> dict[str, Any]:
        count = self._asked.choices
        return usage_of(usages[start : start + count] for start in range(0, len(usages), count))

    async def _tokens(self, done: Done, offset_chars: int) -> dict[str, Any] | None:
        if self._asked.logprobs is None:
            return None
        return completion_logprobs(await logprobs_of(self._gateway, self._run, done), offset_chars)

    def _chunk(self, index: int, text: str) -> dict[str, Any]:
        return self._frame([self._choice(index, text, None, None)], None)

    def _choice(
        self, index: int, text: str, reason: str | None, logprobs: dict[str, Any] | None
    ) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def _frame(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> dict[str, Any]:
        frame: dict[str, Any] = {
            "id": f"cmpl-{self._run.id}",
            "object": "text_completion",
            "created": self._run.created_unix_ms // 1000,
            "model": self._asked.model,
            "choices": choices,
        }
        if not self._named:
            self._named = True
            frame["parrot"] = parrot_member(self._run)
        if usage is not None or self._asked.wants_usage:
            frame["usage"] = usage
        return frame


def _reason(done: Done) -> str:
    return "length" if done.reason == "length" else "stop"


def _cut(text: str) -> list[str]:
    return [text[start : start + EVENT_CHARS] for start in range(0, len(text), EVENT_CHARS)]
