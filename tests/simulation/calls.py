"""Random calls, as they are before they are submitted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from parrot_manager.call_requests import read_call
from parrot_manager.core.scheduling import ANY_MODEL
from parrot_manager.core.submissions import NewCall
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from tests.simulation.dice import Dice
from tests.simulation.texts import Output, Spec

ALWAYS = 1_000
NATIVE_MS = 120_000
"""How long a native call waits for a worker: longer than all workers of a client are ever away."""
WORDS = (60, 40, 250, 10)
"""Of a template, by the number of its inputs: some prompts fill most of a small engine's memory."""
FAILURES = (
    (errors.ENGINE_ERROR.type, 1),
    (errors.ENGINE_ERROR.type, 2),
    (errors.ENGINE_ERROR.type, ALWAYS),
    (errors.PROMPT_TOO_LONG.type, ALWAYS),
    (errors.TRANSFORM_FAILED.type, ALWAYS),
)


@dataclass(slots=True)
class PlannedCall:
    """A call before it is submitted.

    Attributes:
        when: what must hold for it to run; None: nothing.
        native: the client runs it.
    """

    spec: Spec
    model: str
    inputs: tuple[str, ...]
    when: manager_pb2.Condition | None = field(default=None)
    native: bool = False

    @property
    def outputs(self) -> tuple[str, ...]:
        """Its output variables."""
        return tuple(output.variable_id for output in self.spec.outputs)

    def submission(self) -> NewCall:
        """As clients submit it."""
        return read_call(self.message())

    def message(self) -> manager_pb2.NewCall:
        """As it travels. What the simulated engine has to know stands behind the last output."""
        message = manager_pb2.NewCall(name=self.spec.function, model="" if self.native else self.model)
        if not self.native:
            message.segments.add().text = f"{self.spec.function}: " * WORDS[len(self.inputs) % len(WORDS)]
        for name in self.inputs:
            message.segments.add().input.variable_id = name
        for output in self.spec.outputs:
            hole = message.segments.add().output
            hole.variable_id = output.variable_id
            hole.sampling.max_tokens = max(1, 4 * output.pieces)
        if self.native:
            message.native.client.timeout_ms = NATIVE_MS
        else:
            message.segments.add().text = self.spec.encode()
        if self.when is not None:
            message.when.CopyFrom(self.when)
        return message


def plan_call(dice: Dice, function: str, inputs: tuple[str, ...], number: int) -> PlannedCall:
    """A call of a function."""
    outputs = tuple(
        Output(f"{function}-{number}-{place}", dice.between(0, 9), dice.chance(0.5))
        for place in range(2 if dice.chance(0.4) else 1)
    )
    spec = Spec(
        function, outputs, step_ms=dice.pick([5, 20, 60, 200, 400, 900]), resumable=not dice.chance(0.03)
    )
    if dice.chance(0.06):
        kind, attempts = dice.pick(FAILURES)
        after = dice.between(0, outputs[0].pieces)
        spec = replace(spec, fails=kind, fails_attempts=attempts, fails_after=after)
    if dice.chance(0.12):
        greedy = tuple(replace(output, sampled=False) for output in outputs)
        fails = errors.NATIVE_FAILED.type if dice.chance(0.1) else ""
        return PlannedCall(
            Spec(function, greedy, fails, fails_attempts=ALWAYS), ANY_MODEL, inputs, native=True
        )
    return PlannedCall(spec, ANY_MODEL, inputs)
