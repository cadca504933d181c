"""What a program used so far."""

from __future__ import annotations

from dataclasses import dataclass, field

from parrot_engine.backends.base import Phases, Step
from parrot_engine.programs.prefill import Spent
from parrot_proto.common.v1 import common_pb2


@dataclass(slots=True)
class Totals:
    """Tokens and times of one program.

    Attributes:
        counted: by context, how many of its tokens are in the sums already.
        shared: by context, with how many tokens of a shared one it begins.
        spent: on prefill ahead of time; what it computed was not there before, though the backend
            counts it as cached when the output is generated.
    """

    usage: common_pb2.Usage = field(default_factory=common_pb2.Usage)
    timings: common_pb2.Timings = field(default_factory=common_pb2.Timings)
    spent: Spent = field(default_factory=Spent)
    counted: dict[str, int] = field(default_factory=dict)
    shared: dict[str, int] = field(default_factory=dict)
    _ahead: int = 0

    def computed_ahead(self, tokens: int) -> None:
        """Notes prompt tokens that were computed for the next output, before it was asked for."""
        self._ahead += tokens

    def add_output(self, tokens: int) -> None:
        """Takes in an output whose prompt and time are in the sums with another's."""
        self.usage.output_tokens += tokens

    def add(self, context_id: str, parent_id: str, last: Step, output_tokens: int, waited_ms: float) -> None:
        """Takes in an output's last step; a token of the prompt is counted once, cached or not.

        Args:
            output_tokens: all that were generated.
            waited_ms: from when the output could have been asked for until it was.
        """
        counted = self.counted.get(context_id, self.counted.get(parent_id, 0))
        ahead = self.spent.static_tokens + self.spent.dynamic_tokens + self._ahead
        self._ahead -= ahead
        self.usage.prompt_tokens += max(0, last.prompt_tokens - counted)
        cached = max(0, last.cached_tokens - counted - ahead)
        self.usage.cached_tokens += cached
        self.usage.shared_tokens += min(cached, max(0, self.shared.get(context_id, 0) - counted))
        self.usage.output_tokens += output_tokens
        self.counted[context_id] = last.context_tokens
        phases = last.phases or Phases()
        self.timings.queue_ms += waited_ms + phases.queue_ms
        self.timings.prefill_ms += phases.prefill_ms
        self.timings.decode_ms += phases.decode_ms

    def message(self) -> common_pb2.Timings:
        """The times, those spent ahead of time included."""
        self.timings.static_prefill_ms = self.spent.static_ms
        self.timings.dynamic_prefill_ms = self.spent.dynamic_ms
        self.timings.static_prefill_tokens = self.spent.static_tokens
        self.timings.dynamic_prefill_tokens = self.spent.dynamic_tokens
        self.timings.streamed_tokens = self.spent.streamed_tokens
        return self.timings
