"""`get_perf_obj`: what each call is run for, deduced from what the readers of the outputs want.

The backward pass of the paper's section 5.2, and of the latest finish. An output that is read has an
aim. A throughput aim makes all its ancestors throughput. From another aim each stage back is as urgent
as the end it leads to; calls that stand side by side in a stage are one task group, which has one
latest finish: a member that is early gains nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, Protocol

from parrot_manager.core.blocks.live import LiveBlocks
from parrot_manager.core.blocks.model import Block, BlockState
from parrot_manager.core.criteria import Criteria, Objective, ObjectiveKind
from parrot_manager.core.estimates import Estimates
from parrot_manager.core.graph import Graph
from parrot_manager.core.model import Call, Session, Variable
from parrot_manager.core.shapes import CHARS_PER_TOKEN, InputPiece, OutputPiece, Shape, TextPiece

DEFAULT: Final = Criteria(ObjectiveKind.LATENCY)
_PASSES: Final = 4
"""So often the latest finish is brought forward; calls that several ends share may need more than one."""


class SessionView(Protocol):
    """A session in memory, as far as objectives are concerned."""

    @property
    def session(self) -> Session:
        """The session itself."""

    @property
    def calls(self) -> Mapping[str, Call]:
        """All its calls, by id."""

    @property
    def variables(self) -> Mapping[str, Variable]:
        """All its variables, by id."""

    @property
    def graph(self) -> Graph:
        """Who produces and who consumes what."""

    @property
    def unfinished(self) -> Mapping[str, None]:
        """The calls that have not ended."""

    @property
    def blocks(self) -> LiveBlocks:
        """Its blocks."""


@dataclass(frozen=True, slots=True)
class Leeway:
    """How long applications may take.

    Attributes:
        latency_stretch: times the ideal, the time of the longest chain of calls alone on an idle fleet.
        throughput_stretch: the same where nobody is in a hurry,
        patience_ms: but so long at least.
    """

    latency_stretch: float = 2.5
    throughput_stretch: float = 10.0
    patience_ms: int = 60_000


DEFAULT_LEEWAY: Final = Leeway()


@dataclass(slots=True)
class _Node:
    """An unfinished call on its way through the passes.

    `since_ms`: from when its batch came until it is done, at best.
    """

    call: Call
    tenant: str
    producers: list[_Node] = field(default_factory=list)
    consumers: list[_Node] = field(default_factory=list)
    prompt_tokens: int = 0
    max_tokens: int = 0
    likely_ms: float = 0.0
    at_most_ms: float = 0.0
    since_ms: float = 0.0
    kind: ObjectiveKind = ObjectiveKind.THROUGHPUT
    latest_finish_ms: float = float("inf")
    ideal_ms: float = 0.0
    remaining_ms: float = 0.0
    root: _Node | None = None
    stage: int = 0
    read: str = ""
    block: Block | None = None

    @property
    def name(self) -> str:
        return self.call.name

    @property
    def model(self) -> str:
        return self.call.model

    @property
    def stage_before(self) -> int:
        """The stage of what it waits for. A block that is unfolded is none between others."""
        passes = self.block is not None and self.block.state is BlockState.RUNNING and self.stage > 0
        return self.stage if passes else self.stage + 1

    @property
    def latest_start_ms(self) -> float:
        return self.latest_finish_ms - self.at_most_ms

    @property
    def rank(self) -> tuple[bool, float]:
        """Stricter ones are lower."""
        return self.kind is ObjectiveKind.THROUGHPUT, self.latest_finish_ms

    @property
    def title(self) -> str:
        return f"{self.call.id} ({self.call.name})" if self.call.name else self.call.id


def deduce(
    live: SessionView, estimates: Estimates, now_ms: int, leeway: Leeway = DEFAULT_LEEWAY
) -> dict[str, Objective]:
    """The objective of each unfinished call and open block. Linear in their number and their edges."""
    order = _topological(live)
    for node in order:
        _predict(live, node, estimates)
    for node in reversed(order):
        _aim(live, node, leeway)
        _pass_back(node)
    groups = _groups(order)
    return {node.call.id: _objective(node, groups.get(_group_key(node), ())) for node in order}


def _topological(live: SessionView) -> list[_Node]:
    """The unfinished calls and open blocks, producers before consumers."""
    nodes = {call_id: _Node(live.calls[call_id], live.session.tenant) for call_id in live.unfinished}
    for block in live.blocks.opened():
        stand_in = _stand_in(block, live.blocks.objectives.get(block.id))
        nodes[block.id] = _Node(stand_in, live.session.tenant, block=block)
    for node_id, node in nodes.items():
        for producer_id in dict.fromkeys(live.graph.producers_of(node_id)):
            producer = nodes.get(producer_id)
            if producer is not None:
                node.producers.append(producer)
                producer.consumers.append(node)
    waits = {node.call.id: len(node.producers) for node in nodes.values()}
    order = [node for node in nodes.values() if not node.producers]
    for node in order:
        for consumer in node.consumers:
            waits[consumer.call.id] -= 1
            if not waits[consumer.call.id]:
                order.append(consumer)
    return order


def _stand_in(block: Block, objective: Objective | None) -> Call:
    """A block as a call, which takes no time but for what it will unfold into."""
    return Call(
        session_id=block.session_id,
        id=block.id,
        number=block.number,
        order=block.order,
        name=block.name,
        model="",
        inputs=block.inputs,
        outputs=block.outputs,
        spec=b"",
        accepted_ms=block.accepted_ms,
        objective=objective,
    )


def _predict_block(node: _Node, block: Block, estimates: Estimates) -> None:
    """A block that is unfolded waits for its instances alone; before, for its body once."""
    waiting = block.plan is not None and block.state is BlockState.WAITING
    for call in block.plan.body if block.plan is not None and waiting else ():
        step = _Step(node.tenant, call.name, call.model, _max_tokens(call.shape))
        tokens = sum(piece.tokens for piece in call.shape if isinstance(piece, TextPiece))
        node.likely_ms += estimates.duration_ms(step, tokens)
        node.at_most_ms += estimates.duration_ms(step, tokens, 0.9)
    node.since_ms = node.likely_ms + max((producer.since_ms for producer in node.producers), default=0.0)


@dataclass(frozen=True, slots=True)
class _Step:
    """A call that a block will unfold into."""

    tenant: str
    name: str
    model: str
    max_tokens: int


def _max_tokens(shape: Shape) -> int:
    """The most tokens a call generates; 0: no bound is set."""
    bounds = [piece.max_tokens for piece in shape if isinstance(piece, OutputPiece)]
    return sum(bounds) if all(bounds) else 0


def _predict(live: SessionView, node: _Node, estimates: Estimates) -> None:
    """How long a call takes, and how long after its batch began it can be done at best."""
    if node.block is not None:
        _predict_block(node, node.block, estimates)
        return
    made = {
        name: estimates.output(producer).q50
        for producer in node.producers
        for name in producer.call.output_ids
    }
    for piece in node.call.shape:
        if isinstance(piece, TextPiece):
            node.prompt_tokens += piece.tokens
        elif isinstance(piece, InputPiece):
            size = live.variables[piece.variable_id].size_bytes // CHARS_PER_TOKEN
            node.prompt_tokens += size or made.get(piece.variable_id, 0)
    node.max_tokens = _max_tokens(node.call.shape)
    node.likely_ms = estimates.duration_ms(node, node.prompt_tokens)
    node.at_most_ms = max(node.likely_ms, estimates.duration_ms(node, node.prompt_tokens, 0.9))
    node.since_ms = node.likely_ms + max((producer.since_ms for producer in node.producers), default=0.0)


def _aim(live: SessionView, node: _Node, leeway: Leeway) -> None:
    """Takes in what the readers of a call's own outputs want."""
    before = node.call.objective
    node.ideal_ms = max(node.since_ms, before.ideal_ms if before is not None and not before.stage else 0)
    for variable_id in node.call.output_ids:
        variable = live.variables[variable_id]
        criteria = variable.criteria
        if criteria is None and not live.graph.get_consumers(variable_id):
            criteria = live.session.criteria or DEFAULT
        if criteria is None:
            continue
        finish = min(_finish(node, criteria, leeway), live.session.deadline_ms)
        if node.root is None or (criteria.kind is ObjectiveKind.THROUGHPUT, finish) < node.rank:
            node.kind, node.latest_finish_ms = criteria.kind, finish
            node.root, node.stage, node.read = node, 0, variable.name or variable_id
    if node.root is None:
        # What nobody reads and nothing that is left needs; it was asked for all the same.
        node.latest_finish_ms = min(
            _finish(node, Criteria(ObjectiveKind.THROUGHPUT), leeway), live.session.deadline_ms
        )
    node.remaining_ms += node.likely_ms


def _finish(node: _Node, criteria: Criteria, leeway: Leeway) -> float:
    """By when an output should be there. It is not brought forward while what it waits for is being done."""
    if criteria.kind is ObjectiveKind.DEADLINE and criteria.deadline_ms:
        return criteria.deadline_ms
    begun, before = node.call.accepted_ms, node.call.objective
    if criteria.kind is ObjectiveKind.THROUGHPUT:
        finish = begun + max(leeway.patience_ms, leeway.throughput_stretch * node.since_ms)
    elif criteria.kind is ObjectiveKind.TTFT:
        decode_ms = min(node.likely_ms, node.since_ms)
        finish = begun + leeway.latency_stretch * (node.since_ms - decode_ms) + decode_ms
    else:
        finish = begun + leeway.latency_stretch * node.since_ms
    same = before is not None and before.kind is criteria.kind and before.stage == 0
    return max(finish, before.latest_finish_ms) if before is not None and same else finish


def _pass_back(node: _Node) -> None:
    """Hands a call's aim on to those it waits for; each takes the strictest of its consumers'."""
    for producer in node.producers:
        producer.remaining_ms = max(producer.remaining_ms, node.remaining_ms)
        rank = (node.kind is ObjectiveKind.THROUGHPUT, node.latest_start_ms)
        if producer.root is None or rank < producer.rank:
            producer.kind, producer.latest_finish_ms = node.kind, node.latest_start_ms
            producer.root, producer.read = node.root or node, ""
            producer.stage = node.stage_before
        elif producer.root is node.root:
            producer.stage = max(producer.stage, node.stage_before)


def _group_key(node: _Node) -> tuple[str, int]:
    return (node.root or node).call.id, node.stage


def _groups(order: Iterable[_Node]) -> dict[tuple[str, int], list[_Node]]:
    """The stages with several calls side by side, by root and stage; all get the earliest latest finish."""
    stages: dict[tuple[str, int], list[_Node]] = {}
    for node in order:
        if node.block is None and node.stage and node.kind is not ObjectiveKind.THROUGHPUT:
            stages.setdefault(_group_key(node), []).append(node)
    groups = {key: members for key, members in stages.items() if len(members) > 1}
    by_stage = sorted(order, key=lambda node: node.stage)
    for _ in range(_PASSES):
        if not _bring_forward(by_stage, groups):
            break
    return groups


def _bring_forward(by_stage: Iterable[_Node], groups: Mapping[tuple[str, int], list[_Node]]) -> bool:
    """What a group has to finish earlier for its strictest member, those before it have to as well.

    Stage by stage from the ends, one pass does for what leads to one end; returns whether any changed.
    """
    changed = False
    for _, nodes in groupby(by_stage, key=lambda node: node.stage):
        of_stage = list(nodes)
        for node in of_stage:
            starts = [consumer.latest_start_ms for consumer in node.consumers]
            changed |= _finish_by(node, min(starts, default=node.latest_finish_ms))
        for key in dict.fromkeys(map(_group_key, of_stage)):
            members = groups.get(key, [])
            finish = min((node.latest_finish_ms for node in members), default=0.0)
            for node in members:
                changed |= _finish_by(node, finish)
    return changed


def _finish_by(node: _Node, finish_ms: float) -> bool:
    earlier = finish_ms < node.latest_finish_ms
    node.latest_finish_ms = min(node.latest_finish_ms, finish_ms)
    return earlier


def _objective(node: _Node, group: list[_Node] | tuple[()]) -> Objective:
    root, stage = _group_key(node)
    return Objective(
        node.kind,
        group=f"{root}-{stage}" if group else "",
        reason=_reason(node, len(group)),
        latest_finish_ms=int(node.latest_finish_ms),
        latest_start_ms=int(node.latest_start_ms),
        remaining_ms=int(node.remaining_ms),
        end_ms=int((node.root or node).latest_finish_ms),
        stage=stage,
        ideal_ms=int((node.root or node).ideal_ms),
        members=max(1, len(group)),
    )


def _reason(node: _Node, members: int) -> str:
    kind = node.kind.name.lower()
    if node.root is None or node.root is node:
        return f"{kind} of {node.read!r}" if node.read else f"{kind}: nobody reads its outputs"
    who = f"group of {members} " if members else ""
    far = f"{node.stage} stages " if node.stage > 1 else ""
    return f"{kind}: {who}{far}ahead of {node.root.title}"
