"""One output, from the server's chunks to steps."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from parrot_engine.backends.base import BackendError, FinishReason, Phases, Sampling, Step
from parrot_engine.backends.contexts import output_tokens
from parrot_engine.backends.openai.chunks import CharacterJoiner, Chunk
from parrot_engine.text.stream import TextStream
from parrot_engine.text.tokens import PromptTokenizer


@dataclass(slots=True)
class OpenAIOutput:
    """What has come of one output.

    Attributes:
        takes_ids: the ids that the server names are those of `tokenizer`.
        stopped: a stop text came; the server need not go on.
    """

    tokenizer: PromptTokenizer
    sampling: Sampling
    prompt_tokens: int
    takes_ids: bool
    stopped: bool = False
    _generated: int = 0
    _asked_at: float = field(default_factory=time.perf_counter)
    _answered_at: float = 0.0
    _last_at: float = 0.0
    _cached_tokens: int = 0
    _token_ids: list[int] = field(default_factory=list)
    _pieces: list[str] = field(default_factory=list)
    _reason: FinishReason | None = None
    _last: Step | None = None
    _joiner: CharacterJoiner = field(default_factory=CharacterJoiner)
    _stream: TextStream = field(init=False)

    def __post_init__(self) -> None:
        self._stream = TextStream(self.sampling.stop)

    def take(self, chunk: Chunk) -> Step | None:
        """The step that a chunk makes; None: it makes none yet.

        Raises:
            BackendError: the server ended the output for a reason that is no end.
        """
        self._cached_tokens = chunk.cached_tokens or self._cached_tokens
        if self._reason is not None or not (chunk.text or chunk.token_ids or chunk.finish_reason):
            return None
        self._note_time()
        text = self._joiner.push(chunk.text) + (self._joiner.finish() if chunk.finish_reason else "")
        ids = self._ids(chunk, text)
        released, self.stopped = self._stream.push(
            text.encode(), may_stop=self._generated > self.sampling.min_tokens
        )
        self._reason = "stop_text" if self.stopped else _finish_reason(chunk.finish_reason)
        if self._reason is not None and not self.stopped:
            released += self._stream.finish()
        self._pieces.append(released)
        step = Step(released, tuple(ids), self.prompt_tokens, 0, logprobs=chunk.logprobs)
        if self._reason is None:
            return step
        self._last = step
        return None

    def last_step(self) -> Step:
        """The step the output ended with, with all that came behind it.

        Raises:
            BackendError: it has not ended.
        """
        if self._last is None:
            raise BackendError("the server ended the stream before the output's end")
        return replace(
            self._last,
            cached_tokens=min(self._cached_tokens, self.prompt_tokens),
            finish_reason=self._reason,
            phases=self._phases(),
        )

    def tokens(self) -> list[int]:
        """What the context holds of it: the server's tokens where they spell the text."""
        text = "".join(self._pieces)
        if self._token_ids:
            kept = output_tokens(self.tokenizer, self._token_ids, text, self._reason or "length")
            if self.tokenizer.decode(kept) == text:
                return kept
        return self.tokenizer.encode_value(text)

    def _ids(self, chunk: Chunk, text: str) -> Sequence[int]:
        """A chunk's tokens: where the server does not name them, what they may have been by the text."""
        if self.takes_ids and chunk.token_ids is not None:
            self._generated += len(chunk.token_ids)
            self._token_ids += chunk.token_ids
            return chunk.token_ids
        self._generated += 1
        return self.tokenizer.encode_value(text)

    def _note_time(self) -> None:
        self._last_at = time.perf_counter()
        self._answered_at = self._answered_at or self._last_at

    def _phases(self) -> Phases:
        """A server does not tell when it began; all the time to the first token counts as prefill."""
        return Phases(
            prefill_ms=(self._answered_at - self._asked_at) * 1000,
            decode_ms=(self._last_at - self._answered_at) * 1000,
        )


def _finish_reason(said: str | None) -> FinishReason | None:
    if said is None or said == "":
        return None
    if said == "stop":
        return "stop"
    if said == "length":
        return "length"
    raise BackendError(f"the server ended the output: {said[:100]}")
