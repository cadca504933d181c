"""Whose tokens a step of vLLM's computes: a budget, and who sits a step out.

vLLM gives a step's tokens to what runs, in the order in which it began, and what is left to what waits. A
prompt that nobody is in a hurry for, once begun, would so go before one that somebody waits for, and hold
up every output that is written meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from vllm.v1.request import RequestStatus

from parrot_engine.backends.pacing import StepPace

WAITS = (RequestStatus.WAITING, RequestStatus.PREEMPTED)


class Turns:
    """Knows which requests are urgent: those with a limit for the steps in which their output is written.

    Fills ahead of such an output are cut, as nobody waits for them yet, but go before all that is not urgent.
    """

    def __init__(self, most: int) -> None:
        """`most`: tokens of a step."""
        self._most = most
        self._pace = StepPace()
        self._limits_ms: dict[str, float] = {}
        self._ahead: set[str] = set()
        self._sat_out: frozenset[str] = frozenset()
        self._step_ended_at: float | None = None

    @property
    def decode_ms(self) -> float:
        """See `StepPace`."""
        return self._pace.decode_ms

    def add(self, name: str, limit_ms: float, *, ahead: bool) -> None:
        """A request comes; `limit_ms` 0: it is not urgent; `ahead`: it is a fill."""
        if limit_ms:
            self._limits_ms[name] = limit_ms
            if ahead:
                self._ahead.add(name)

    def remove(self, name: str) -> None:
        """A request ended."""
        self._limits_ms.pop(name, None)
        self._ahead.discard(name)

    def plan(self, requests: Iterable[Any], step: int) -> int:
        """The tokens that step number `step` may take, one for each output that is written among them.

        Prompts that are not urgent sit it out while one that is has not been computed, but never two steps
        in a row.
        """
        if not self._limits_ms:
            self._sat_out = frozenset()
            return self._most
        rows, urgent = 0, 0
        limits_ms: list[float] = []
        patient: list[Any] = []
        others = False
        for request in requests:
            runs = request.status is RequestStatus.RUNNING
            if not runs and request.status not in WAITS:
                continue
            limit_ms = self._limits_ms.get(request.request_id, 0.0)
            missing = request.num_tokens - request.num_computed_tokens
            if runs and request.num_computed_tokens >= request.num_prompt_tokens:
                rows += 1
                # One that was preempted and is prefilled again waits for all of it, not for its next token.
                if limit_ms and request.num_output_tokens:
                    limits_ms.append(limit_ms)
            elif limit_ms:
                others = True
                urgent += 0 if request.request_id in self._ahead else missing
            elif runs:
                patient.append(request)
        self._sit_out(patient if others else [], step)
        if not limits_ms:
            return self._most
        return min(self._most, rows + self._pace.beside(min(limits_ms), urgent, self._most))

    def measure(self, output: Any) -> None:
        """Notes how long a step took that followed another one directly."""
        now, before = time.monotonic(), self._step_ended_at
        counts: Mapping[str, int] = output.num_scheduled_tokens
        self._step_ended_at = now if counts else None
        if counts and before is not None:
            self._pace.note(now - before, _prefilled(output))

    def _sit_out(self, patient: list[Any], step: int) -> None:
        chosen = [request for request in patient if request.request_id not in self._sat_out]
        for request in chosen:
            # What vLLM has for requests whose last token is not at all workers yet.
            request.next_decode_eligible_step = step + 1
        self._sat_out = frozenset(request.request_id for request in chosen)


def _prefilled(output: Any) -> int:
    """The tokens of a step that are no output's next one."""
    counts: Mapping[str, int] = output.num_scheduled_tokens
    new = {request.req_id for request in output.scheduled_new_reqs}
    return sum(count for name, count in counts.items() if count > 1 or name in new)
