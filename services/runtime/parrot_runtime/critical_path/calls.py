"""A call's time in tiles: what the manager saw of it, and between that what its engine says it did.

An engine's clock is not the manager's. Its laps are durations, which are laid between two moments of the
manager's clock: when the program was sent, and when the report of its end came. What they leave of that is
the way there and back, half of it each, as NTP has it (RFC 5905, section 8): the laps are wrong by half of it
at the most, and in their sum not at all. Where they sum to more than there is, by a clock that ran faster,
they are scaled to fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass

from parrot_runtime.critical_path.nodes import Node, Sign, Signal
from parrot_runtime.critical_path.records import CallTimes, Lap
from parrot_runtime.critical_path.stages import Stage


@dataclass(frozen=True, slots=True)
class Makers:
    """Who makes which variable and which came, when calls were dispatched, when calls and blocks ended."""

    producers: Mapping[str, str]
    came: Set[str]
    dispatched_ms: Mapping[str, float]
    ended_ms: Mapping[str, float]

    def ends(self, inputs: Iterable[str], at_ms: float) -> tuple[Signal, ...]:
        """The ends until then of those that should have made what never came."""
        makers = dict.fromkeys(self.producers.get(name, "") for name in inputs if name not in self.came)
        return tuple((Sign.OVER, one) for one in makers if 0 < self.ended_ms.get(one, 0.0) <= at_ms)


def add_stages(node: Node, call: CallTimes, made: Makers, *, lazy: bool, now_ms: float) -> None:
    """Adds a call's tiles to its node, and the signals it gives."""
    ended_ms = call.ended_ms or now_ms
    node.add(Stage.ADMISSION, min(call.entered_ms, ended_ms))
    _add_waiting(node, call, made, Stage.CLIENT if lazy else Stage.INPUTS, ended_ms)
    queue = Stage.CLIENT if call.by_client else Stage.QUEUE
    node.add(queue, min(call.first_dispatched_ms or call.dispatched_ms or ended_ms, ended_ms))
    node.add(Stage.RETRIES, min(call.dispatched_ms or ended_ms, ended_ms))
    if call.dispatched_ms:
        node.emit(Sign.DISPATCHED, call.id)
        _add_attempt(node, call, made, ended_ms)
    node.emit(Sign.OVER, call.id)


def _add_waiting(node: Node, call: CallTimes, made: Makers, stage: Stage, ended_ms: float) -> None:
    if call.sent_ahead:
        # It may go as soon as those that make its inputs have gone.
        makers = tuple(dict.fromkeys(made.producers.get(name, "") for name in call.inputs))
        gone_ms = [made.dispatched_ms.get(maker, 0.0) for maker in makers]
        until_ms = max((at_ms for at_ms in gone_ms if at_ms <= call.dispatched_ms), default=0.0)
        node.add(stage, until_ms, tuple((Sign.DISPATCHED, maker) for maker in makers))
    else:
        until_ms = min(call.ready_ms, ended_ms) if call.ready_ms else ended_ms
        node.add(stage, until_ms, _came(call) + _never_came(call, made))


def _came(call: CallTimes) -> tuple[Signal, ...]:
    return tuple((Sign.READY, name) for name in call.inputs)


def _never_came(call: CallTimes, made: Makers) -> tuple[Signal, ...]:
    """What ended a call whose inputs were not all there when it ended."""
    return () if call.ready_ms or not call.ended_ms else made.ends(call.inputs, call.ended_ms)


def _add_attempt(node: Node, call: CallTimes, made: Makers, ended_ms: float) -> None:
    lost = _never_came(call, made)
    node.add(Stage.COMMIT, min(call.sent_ms, ended_ms))
    told_ms = min(call.told_ms, ended_ms) if call.told_ms else ended_ms
    if call.by_client:
        node.add(Stage.CLIENT, ended_ms)
    elif call.laps:
        _add_laps(node, call.laps, max(told_ms, node.end_ms))
    else:
        node.add(Stage.UNEXPLAINED if call.ended_ms else Stage.RUNNING, told_ms, lost)
    # One that was sent ahead is committed behind its inputs.
    waits = _came(call) + lost if call.sent_ahead else ()
    node.add(Stage.COMMIT, ended_ms, waits)


def _add_laps(node: Node, laps: tuple[Lap, ...], told_ms: float) -> None:
    sent_ms = node.end_ms
    there_ms, total_ms = told_ms - sent_ms, sum(lap.lasted_ms for lap in laps)
    scale = min(1.0, there_ms / total_ms) if total_ms else 1.0
    node.add(Stage.NETWORK, sent_ms + (there_ms - total_ms * scale) / 2)
    for lap in laps:
        until_ms = min(node.end_ms + lap.lasted_ms * scale, told_ms)
        if lap.awaited:
            # What lies between the end of the value there and here is its way.
            node.add(Stage.INPUTS, until_ms, ((Sign.PUBLISHED, lap.awaited),), Stage.NETWORK)
        else:
            node.add(lap.stage, until_ms)
        if lap.published:
            node.emit(Sign.PUBLISHED, lap.published)
    node.add(Stage.NETWORK, told_ms)
