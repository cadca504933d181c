"""Rollouts: an output's tokens with their logprobs, and what made them, for training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from parrot_engine.backends.base import Step, TokenLogprobs
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.values.v1 import values_pb2
from parrot_runtime.values.fences import Mark
from parrot_runtime.values.finals import Finals

VERSION: Final = 1
PART_TOKENS: Final = 1024
"""Tokens of one message: with 20 alternatives each, a quarter of a bus message."""


@dataclass(slots=True)
class Rollouts:
    """Collects one output's rollout and publishes it; `spell`: the bytes a token stands for."""

    ref: engine_pb2.AttemptRef
    variable_id: str
    provenance: common_pb2.Provenance
    seed: int | None
    prompt_token_ids: Sequence[int]
    spell: Callable[[int], bytes]
    resumed_tokens: int = 0
    _token_ids: list[int] = field(default_factory=list)
    _logprobs: list[TokenLogprobs] = field(default_factory=list)
    _prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)

    def add(self, step: Step) -> None:
        """Takes in what a step made."""
        self._token_ids += step.token_ids
        self._logprobs += step.logprobs
        self._prompt_logprobs += step.prompt_logprobs

    async def publish(self, finals: Finals, final_subject: str, mark: Mark | None) -> None:
        """Puts it on the bus beside the value, before it.

        Raises:
            Fault: `unavailable`, when the bus does not take it.
            FencedError: the engine was given up.
        """
        for part in self.parts():
            await finals.publish_rollout(final_subject, part, mark=mark)

    def parts(self) -> Iterator[values_pb2.Rollout]:
        """The messages it travels in."""
        longest = max(len(self.prompt_token_ids), len(self._token_ids), 1)
        count = -(-longest // PART_TOKENS)
        for index in range(count):
            cut = slice(index * PART_TOKENS, (index + 1) * PART_TOKENS)
            yield values_pb2.Rollout(
                version=VERSION,
                variable_id=self.variable_id,
                call_id=self.ref.call_id,
                attempt=self.ref.attempt,
                provenance=self.provenance,
                seed=self.seed,
                prompt_token_ids=self.prompt_token_ids[cut],
                token_ids=self._token_ids[cut],
                token_texts=map(self.spell, self._token_ids[cut]),
                logprobs=map(self._spelt, self._logprobs[cut]),
                prompt_logprobs=map(_message, self._prompt_logprobs[cut]),
                resumed_tokens=self.resumed_tokens,
                part=index,
                parts=count,
            )

    def _spelt(self, found: TokenLogprobs) -> values_pb2.TokenLogprobs:
        message = _message(found)
        message.top_texts.extend(self.spell(token) for token, _ in found.top)
        return message


def _message(found: TokenLogprobs) -> values_pb2.TokenLogprobs:
    return values_pb2.TokenLogprobs(
        logprob=found.logprob,
        top_ids=[token for token, _ in found.top],
        top_logprobs=[logprob for _, logprob in found.top],
    )
