"""What calls will take: how long their outputs get, by function, and how fast engines are."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final, Protocol

from parrot_manager.core.model import Engine, Timings, Usage
from parrot_manager.core.paces import Pace
from parrot_manager.core.windows import Window

FUNCTIONS: Final = 10_000
"""So many are remembered; the one unused for longest is forgotten."""
ASSUMED_OUTPUT_TOKENS: Final = 128
"""Of a function never seen whose outputs are not bounded lower."""


class Function(Protocol):
    """A call of a semantic function."""

    @property
    def tenant(self) -> str:
        """Whose it is: what one tenant's calls are like is not told by another's."""

    @property
    def name(self) -> str:
        """Calls of one name are alike."""

    @property
    def model(self) -> str:
        """Models differ in how long they talk."""

    @property
    def max_tokens(self) -> int:
        """Of all outputs; 0: not bounded."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens a call will generate."""

    q50: int
    q90: int


class Estimates:
    """What was learned, and what is assumed until then."""

    def __init__(self) -> None:
        self._outputs: OrderedDict[tuple[str, str, str], Window] = OrderedDict()
        self._kinds: dict[tuple[str, str], Pace] = {}
        self._speeds: dict[str, Window] = {}
        self._any = Pace()

    def output(self, call: Function) -> Lengths:
        """How long a call's outputs get."""
        bound = call.max_tokens
        window = self._outputs.get((call.tenant, call.name, call.model))
        if window is None or not window.enough:
            assumed = min(bound, ASSUMED_OUTPUT_TOKENS) if bound else ASSUMED_OUTPUT_TOKENS
            return Lengths(assumed, bound or 4 * assumed)
        q50, q90 = int(window.median), int(window.quantile(0.9))
        return Lengths(min(bound, q50), min(bound, q90)) if bound else Lengths(q50, q90)

    def learn_output(self, call: Function, tokens: int) -> None:
        """A call generated so many tokens."""
        key = (call.tenant, call.name, call.model)
        window = self._outputs.get(key)
        if window is None:
            window = self._outputs[key] = Window()
            if len(self._outputs) > FUNCTIONS:
                self._outputs.popitem(last=False)
        self._outputs.move_to_end(key)
        window.add(tokens)

    def pace(self, engine: Engine) -> Pace:
        """How fast an engine is, as far as is known: that of its kind, times its own speed."""
        kind = self._kinds.get((engine.model, engine.backend))
        if kind is None:
            return self._any
        speed = self._speeds.get(engine.id)
        return kind if speed is None or not speed.enough else kind.times(speed.median)

    def typical(self, model: str) -> Pace:
        """How fast an engine of a model is that nobody has chosen yet."""
        found = [pace for (of_model, _), pace in self._kinds.items() if model in {"", of_model}]
        return max(found, key=lambda pace: pace.known, default=self._any)

    def forget_engine(self, engine_id: str) -> None:
        """An engine is gone; another of its name may be another machine."""
        self._speeds.pop(engine_id, None)

    def hear_step(self, engine: Engine, step_weight: float, step_ms: float) -> None:
        """An engine said how long its steps are, with a batch of so much weight."""
        kind = self._kind(engine)
        kind.heard = True
        self._learn_step(engine, kind, step_weight, step_ms)

    def learn_call(
        self, engine: Engine, step_weight: float, usage: Usage, timings: Timings, *, cut: bool = False
    ) -> None:
        """A call ran on an engine, in a batch of so much weight.

        `cut`: its prompt was computed in pieces, with pauses, for the sake of others: the time that took
        says nothing of how fast the engine is.
        """
        kind = self._kind(engine)
        # A call's decoding has the prefills of others in it; what engines say of their steps has not.
        if usage.output_tokens > 1 and not kind.heard:
            self._learn_step(engine, kind, step_weight, timings.decode_ms / usage.output_tokens)
        if cut:
            return
        computed = usage.prompt_tokens - usage.cached_tokens
        took_ms = timings.prefill_ms + timings.static_prefill_ms + timings.dynamic_prefill_ms
        kind.learn_prefill(computed, took_ms)

    def duration_ms(self, call: Function, prompt_tokens: int, share: float = 0.5) -> float:
        """What a call takes alone on an idle engine, nothing of it in KV; `share` 0.9: seldom more."""
        pace = self.typical(call.model)
        lengths = self.output(call)
        output = lengths.q90 if share > 0.5 else lengths.q50
        return prompt_tokens / pace.prefill_per_ms + output * pace.line.step_ms(prompt_tokens + output / 2)

    def _kind(self, engine: Engine) -> Pace:
        return self._kinds.setdefault((engine.model, engine.backend), Pace())

    def _learn_step(self, engine: Engine, kind: Pace, step_weight: float, step_ms: float) -> None:
        if step_ms <= 0:
            return
        kind.learn_step(step_weight, step_ms)
        # Against a guess every engine would be fast or slow.
        if kind.known:
            speed = self._speeds.setdefault(engine.id, Window())
            speed.add(step_ms / kind.line.step_ms(step_weight))
