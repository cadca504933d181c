"""Random applications: chains, map-reduce, diamonds and thickets, in batches, with calls that fail."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace

from parrot_manager.core.blocks.definitions import NewBlock
from parrot_manager.core.criteria import Criteria, ObjectiveKind
from parrot_manager.core.scheduling import ANY_MODEL
from parrot_manager.core.submissions import NewCall, NewValue
from parrot_proto.manager.v1 import manager_pb2
from tests.simulation.blocks import PlannedBlock, condition_about, plan_block
from tests.simulation.calls import PlannedCall, plan_call
from tests.simulation.dice import Dice

LONG_MS = 600_000
Node = PlannedCall | PlannedBlock
Shape = tuple[list[Node], dict[str, str]]


@dataclass(slots=True)
class PlannedBatch:
    """What is submitted at once.

    Attributes:
        after_ms: since the batch before.
        key: its idempotency key.
        again: it is sent once more after it was accepted.
    """

    after_ms: int
    key: str
    nodes: list[Node]
    values: dict[str, str] = field(default_factory=dict)
    again: bool = False

    @property
    def outputs(self) -> list[str]:
        """What it makes."""
        return [name for node in self.nodes for name in node.outputs]

    def calls(self) -> list[NewCall]:
        """Its calls, as clients submit them."""
        return [node.submission() for node in self.nodes if isinstance(node, PlannedCall)]

    def blocks(self) -> list[NewBlock]:
        """Its blocks."""
        return [node.submission() for node in self.nodes if isinstance(node, PlannedBlock)]

    def given(self) -> list[NewValue]:
        """Its values."""
        return [NewValue(name, name, text.encode()) for name, text in self.values.items()]

    def digest(self) -> bytes:
        """Of its content."""
        made = hashlib.blake2b(digest_size=16)
        for node in self.nodes:
            message = node.message() if isinstance(node, PlannedCall) else node.message
            made.update(message.SerializeToString(deterministic=True))
        made.update(repr(sorted(self.values.items())).encode())
        return made.digest()


@dataclass(slots=True)
class PlannedApp:
    """One application, as its client means it to go.

    Attributes:
        session_id: derived from its idempotency key, in the real system.
        timeout_ms: the session's.
        cancels: (after, output, whether what only that needs goes too): calls that are cancelled.
        ends_with_calls: the session closes by itself.
        at_once: the session is opened with its first batch.
        closes_ms: when the client gives up; 0: never.
        deletes: it deletes the session where others only close it.
        reads: (variable, after, whether its reader's gateway dies on the way).
    """

    session_id: str
    starts_ms: int
    timeout_ms: int
    lazy: bool
    criteria: Criteria | None
    batches: list[PlannedBatch]
    ends_with_calls: bool = False
    at_once: bool = False
    cancels: list[tuple[int, str, bool]] = field(default_factory=list)
    closes_ms: int = 0
    deletes: bool = False
    reads: list[tuple[str, int, bool]] = field(default_factory=list)

    @property
    def nodes(self) -> list[Node]:
        """All its calls and blocks."""
        return [node for batch in self.batches for node in batch.nodes]

    @property
    def natives(self) -> dict[str, PlannedCall]:
        """Its calls that workers run, those of bodies too, by their first outputs."""
        bodies = [call for node in self.nodes if isinstance(node, PlannedBlock) for call in node.body]
        calls = [node for node in self.nodes if isinstance(node, PlannedCall)]
        return {call.outputs[0]: call for call in [*calls, *bodies] if call.native}

    def native(self, output: str) -> PlannedCall:
        """The call that workers run whose first output is this one, or an instance's of this one."""
        found = self.natives
        return found.get(output) or next(call for name, call in found.items() if output.endswith(f"-{name}"))

    @property
    def undisturbed(self) -> bool:
        """Whether nobody means to end it early."""
        return not self.cancels and not self.closes_ms and self.timeout_ms >= LONG_MS


def plan(dice: Dice, number: int, shards: range, models: list[str]) -> PlannedApp:
    """An application for engines of these models."""
    nodes, values = dice.pick([_chain, _map_reduce, _diamond, _thicket, _thicket])(dice)
    app = PlannedApp(
        session_id=f"s{dice.pick(shards):02x}-{number:016x}",
        starts_ms=dice.between(0, 3_000),
        timeout_ms=dice.between(1_500, 8_000) if dice.chance(0.06) else LONG_MS,
        lazy=dice.chance(0.15),
        criteria=dice.pick([None, Criteria(ObjectiveKind.LATENCY), Criteria(ObjectiveKind.THROUGHPUT)]),
        batches=_batches(dice, [_with_model(dice, node, models) for node in nodes], values),
    )
    if dice.chance(0.12):
        app.closes_ms = dice.between(200, 6_000)
    if dice.chance(0.12):
        made = [name for batch in app.batches for name in batch.outputs]
        app.cancels = [(dice.between(100, 5_000), dice.pick(made), dice.chance(0.5))]
    app.ends_with_calls = len(app.batches) == 1 and dice.chance(0.5)
    app.reads = _reads(dice, app)
    app.deletes = dice.chance(0.3)
    # What is on its way twice would open anew what was deleted meanwhile: as it should, and as a new session.
    app.at_once = number % 2 == 0 and not app.deletes
    return app


def _chain(dice: Dice) -> Shape:
    nodes: list[Node] = []
    last = "topic"
    for number in range(dice.between(1, 6)):
        nodes.append(plan_call(dice, f"step{number}", (last,), number))
        last = nodes[-1].outputs[0]
    return nodes, {"topic": "the sea"}


def _map_reduce(dice: Dice) -> Shape:
    count = dice.between(2, 6)
    values = {f"part{number}": f"part {number} of a text" for number in range(count)}
    maps: list[Node] = [plan_call(dice, "map", (f"part{number}",), number) for number in range(count)]
    reduce = plan_call(dice, "reduce", tuple(call.outputs[0] for call in maps), count)
    return [*maps, reduce], values


def _diamond(dice: Dice) -> Shape:
    top = plan_call(dice, "top", (), 0)
    left = plan_call(dice, "left", top.outputs[:1], 1)
    right = plan_call(dice, "right", top.outputs[-1:], 2)
    return [top, left, right, plan_call(dice, "bottom", (left.outputs[0], right.outputs[0]), 3)], {}


def _thicket(dice: Dice) -> Shape:
    """Calls and blocks that read whatever is there."""
    nodes: list[Node] = []
    known = ["given"]
    blocks = dice.between(0, 2)
    for number in range(dice.between(2, 8)):
        if blocks and dice.chance(0.4):
            blocks -= 1
            nodes.append(plan_block(dice, known, number))
        else:
            nodes.append(_call_of_thicket(dice, known, number))
        known += nodes[-1].outputs
    return nodes, {"given": "a value that a client gave"}


def _call_of_thicket(dice: Dice, known: list[str], number: int) -> PlannedCall:
    call = plan_call(dice, dice.pick(["f", "g"]), tuple(dice.some(known, 3)), number)
    if dice.chance(0.12):
        call.when = manager_pb2.Condition()
        condition_about(dice, dice.pick(known), call.when)
    return call


def _with_model(dice: Dice, node: Node, models: list[str]) -> Node:
    """The call, for any engine or those of a model; a block's calls go anywhere."""
    if isinstance(node, PlannedBlock):
        return node
    return replace(node, model=dice.pick([ANY_MODEL, *models]))


def _batches(dice: Dice, nodes: list[Node], values: dict[str, str]) -> list[PlannedBatch]:
    count = dice.between(1, min(3, len(nodes)))
    cuts = sorted(dice.between(1, len(nodes)) for _ in range(count - 1))
    batches: list[PlannedBatch] = []
    for place, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(nodes)], strict=True)):
        if start == end and place:
            continue
        batch = PlannedBatch(dice.between(0, 3_000) if place else 0, f"key-{place}", nodes[start:end])
        batch.again = dice.chance(0.15)
        if dice.chance(0.3):
            batch.nodes.reverse()
        batches.append(batch)
    batches[0].values = values
    return batches


def _reads(dice: Dice, app: PlannedApp) -> list[tuple[str, int, bool]]:
    made = [name for batch in app.batches for name in batch.outputs]
    wanted = dice.some(made, 4) if not app.lazy else made
    return [(name, dice.between(0, 3_000), dice.chance(0.2)) for name in wanted]
