"""Whose tokens a step of vLLM's computes: a budget, and who sits a step out.

vLLM gives a step's tokens to what runs, in the order in which it began, and what is left to what waits. A
prompt that nobody is in a hurry for, once begun, would so go before one that somebody waits for, and hold
up every output that is written meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vllm.v1.request import RequestStatus

from parrot_engine.backends.pacing import LEAST_PREFILLED, StepPace

WAITS: Final = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


@dataclass(frozen=True, slots=True)
class Limit:
    """What a request may ask of the steps of its engine; see `Errand`.

    Attributes:
        step_ms: 0: it is in no hurry, and asks for nothing.
        ahead: it is a fill, and the output it is for waits for its inputs still.
        held_tokens: of its prompt, those whose KV is likely to be there.
    """

    step_ms: float = 0.0
    beside_share: float = 0.0
    ahead: bool = False
    held_tokens: int = 0


NO_LIMIT: Final = Limit()
LINGER_S: Final = 0.05
"""So long after an output of an application in a hurry steps stay short: the call that reads it comes a
moment later, and would find itself behind a step full of prompts that can wait."""


@dataclass(slots=True)
class _Wants:
    """What the requests of a moment want of the next step.

    Attributes:
        rows: outputs that are being written.
        limits: of those that are written, or wait for their first token.
        urgent_tokens: of prompts that are waited for.
        ahead_tokens: of prompts that will be.
        patient: prompts that have begun and can wait.
    """

    rows: int = 0
    limits: list[Limit] = field(default_factory=list)
    urgent_tokens: int = 0
    ahead_tokens: int = 0
    patient: list[Any] = field(default_factory=list)


class Turns:
    """Knows which requests are urgent: those with a limit for the steps in which their output is written.

    Fills ahead of such an output are cut, as nobody waits for them yet, but go before all that is not urgent.

    Attributes:
        pace: what steps cost lately.
    """

    def __init__(self, most: int) -> None:
        """`most`: tokens of a step."""
        self._most = most
        self.pace = StepPace()
        self._limits: dict[str, Limit] = {}
        self._share = 0.0
        self._spared = False
        self._lingers_until = 0.0
        self._step_ended_at: float | None = None

    def add(self, name: str, limit: Limit) -> None:
        """A request comes."""
        if limit.step_ms:
            self._limits[name] = limit

    def remove(self, name: str) -> None:
        """A request ended."""
        limit = self._limits.pop(name, None)
        if limit is not None and limit.beside_share:
            self._lingers_until = time.monotonic() + LINGER_S

    def plan(self, requests: Iterable[Any], step: int) -> int:
        """The tokens that step number `step` may take, one for each output that is written among them.

        Prompts that are not urgent sit it out while they owe time to the outputs beside them, and while a
        prompt that is urgent has not been computed, but never two steps in a row for that.
        """
        lingers = time.monotonic() < self._lingers_until
        if not self._limits and not lingers:
            self._share, self._spared = 0.0, False
            return self._most
        wants = self._look(requests)
        if not wants.limits and lingers:
            # With nothing to write it goes on with little, rather than with nothing.
            self._spared = False
            self._sit_out(wants.patient if wants.rows else [], step)
            return min(self._most, wants.rows + LEAST_PREFILLED)
        self._share = min((one.beside_share for one in wants.limits if one.beside_share), default=0.0)
        owes = bool(self._share) and self.pace.owes
        self._spared = bool(wants.urgent_tokens or wants.ahead_tokens) and not self._spared
        self._sit_out(wants.patient if owes or self._spared else [], step)
        if not wants.limits:
            return self._most
        return min(self._most, wants.rows + self._beside(wants, owes=owes))

    def measure(self, output: Any) -> None:
        """Notes how long a step took that followed another one directly."""
        now, before = time.monotonic(), self._step_ended_at
        counts: Mapping[str, int] = output.num_scheduled_tokens
        self._step_ended_at = now if counts else None
        prefilled = _prefilled(output)
        if counts and before is not None:
            self.pace.note(now - before, sum(prefilled.values()))
        self.pace.owe(sum(count for name, count in prefilled.items() if name not in self._limits))
        self.pace.pay(self._share)

    def _look(self, requests: Iterable[Any]) -> _Wants:
        wants = _Wants()
        for request in requests:
            runs = request.status is RequestStatus.RUNNING
            if not runs and request.status not in WAITS:
                continue
            limit = self._limits.get(request.request_id, NO_LIMIT)
            missing = max(1, request.num_tokens - max(request.num_computed_tokens, limit.held_tokens))
            if runs and request.num_computed_tokens >= request.num_prompt_tokens:
                wants.rows += 1
                # One that was preempted and is prefilled again waits for all of it, not for its next token.
                if limit.step_ms and request.num_output_tokens:
                    wants.limits.append(limit)
            elif limit.ahead:
                wants.ahead_tokens += missing
            elif limit.step_ms:
                wants.urgent_tokens += missing
                wants.limits.append(limit)
            elif runs:
                wants.patient.append(request)
        return wants

    def _beside(self, wants: _Wants, *, owes: bool) -> int:
        """The tokens that may be prefilled beside outputs with a limit."""
        tokens = self.pace.prefilled(min(one.step_ms for one in wants.limits), self._most)
        if owes:
            # What has not begun and can wait finds no room.
            tokens = min(tokens, wants.ahead_tokens)
        if self._spared and wants.urgent_tokens:
            # The step is to be over soon: somebody waits for his first token.
            tokens = min(tokens, LEAST_PREFILLED)
        return max(tokens, min(wants.urgent_tokens, self._most))

    @staticmethod
    def _sit_out(chosen: Iterable[Any], step: int) -> None:
        for request in chosen:
            # What vLLM has for requests whose last token is not at all workers yet.
            request.next_decode_eligible_step = step + 1


def _prefilled(output: Any) -> dict[str, int]:
    """By request, the tokens of a step that are no output's next one."""
    counts: Mapping[str, int] = output.num_scheduled_tokens
    new = {request.req_id for request in output.scheduled_new_reqs}
    return {name: count for name, count in counts.items() if count > 1 or name in new}
