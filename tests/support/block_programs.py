"""Random graphs with blocks, and what comes of them by the plainest reading of what they mean."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from parrot_manager.core.blocks.checks import define
from parrot_manager.core.blocks.definitions import (
    Carried,
    Collected,
    ListForm,
    Listing,
    Loop,
    Map,
    NewBlock,
    Result,
    Select,
)
from parrot_manager.core.conditions import Condition, Predicate, holds
from parrot_manager.core.submissions import NewCall
from parrot_runtime.transforms import NotApplicableError
from parrot_runtime.transforms.json_values import parse_value, shown
from tests.support.stage import Function, new

Pick = Callable[[int], int]

SKIPPED = object()
FAILED = object()
EITHER = object()
"""Skipped or failed, whichever comes first."""
ANYTHING = object()
"""Depends on which of two came first."""
Outcome = object
"""A text, or one of these."""


def _digest(texts: list[str]) -> int:
    return int(hashlib.sha256("|".join(texts).encode()).hexdigest(), 16)


FUNCTIONS: dict[str, Function] = {
    "join": lambda texts: "+".join(texts) or "nothing",
    "flag": lambda texts: "yes" if _digest(texts) % 3 else "no",
    "list": lambda texts: json.dumps([f"i{n}" for n in range(_digest(texts) % 6)]),
    "grow": lambda texts: (texts[0] if texts else "") + "a",
    "break": lambda texts: None,
}
_LIKELY = ("join", "flag", "list", "grow", "join", "flag", "list", "grow", "join", "break")


@dataclass
class Program:
    """Calls and blocks, in an order in which they can be read."""

    nodes: list[NewCall | NewBlock] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)

    @property
    def calls(self) -> list[NewCall]:
        """The calls."""
        return [node for node in self.nodes if isinstance(node, NewCall)]

    @property
    def blocks(self) -> list[NewBlock]:
        """The blocks."""
        return [node for node in self.nodes if isinstance(node, NewBlock)]


class Writer:
    """Writes a random program."""

    def __init__(self, pick: Pick) -> None:
        self._pick = pick
        self._serial = 0

    def program(self, size: int) -> Program:
        """A program of so many calls and blocks."""
        made = Program(given={"g0": "yes", "g1": '["x","y"]', "g2": "plain"})
        known = list(made.given)
        for _ in range(size):
            node = self._node(known)
            made.nodes.append(node)
            known += [edge.variable_id for edge in node.outputs]
        return made

    def _node(self, known: list[str]) -> NewCall | NewBlock:
        kind = self._pick(6)
        if kind == 3:
            return self._block(self._map(known), known)
        if kind == 4:
            return self._block(self._loop(known), known)
        if kind == 5:
            names = tuple(dict.fromkeys(self._one(known) for _ in range(1 + self._pick(3))))
            return self._block(Select(names, self._name(), "chosen"), known)
        return self._call(known)

    def _block(self, plan: Map | Loop | Select, known: list[str]) -> NewBlock:
        when = self._condition(known) if not self._pick(3) else None
        self._serial += 1
        return define("", plan, when, f"block {self._serial}".encode(), "blocks[0]")

    def _call(self, known: list[str], output: str = "") -> NewCall:
        inputs = dict.fromkeys(self._one(known) for _ in range(self._pick(3)))
        when = self._condition(known) if not self._pick(3) else None
        name = _LIKELY[self._pick(len(_LIKELY))]
        return new(name, " ".join(inputs), output or self._name(), when=when)

    def _map(self, known: list[str]) -> Map:
        body, made = self._body([*known, "item", "index"])
        collected = tuple(
            Collected(self._one(made), self._name(), "all", [None, ", "][self._pick(2)])
            for _ in range(1 + self._pick(2))
        )
        return Map(
            self._one(known),
            Listing(ListForm.JSON_ARRAY),
            "item",
            "index",
            body,
            (),
            collected,
            1 + self._pick(5),
        )

    def _loop(self, known: list[str]) -> Loop:
        body, made = self._body([*known, "carried"])
        return Loop(
            body,
            (),
            (Carried("carried", self._one(known), self._one(made)),),
            self._condition(made),
            1 + self._pick(4),
            (Result(self._one(made), self._name(), "last"),),
            bool(self._pick(2)),
        )

    def _body(self, known: list[str]) -> tuple[tuple[NewCall, ...], list[str]]:
        calls: list[NewCall] = []
        made: list[str] = []
        for place in range(1 + self._pick(3)):
            # Its own names come before the session's, be they the same or not.
            calls.append(self._call(known + made, f"out{place}"))
            made.append(f"out{place}")
        return tuple(calls), made

    def _condition(self, known: list[str]) -> Condition:
        about, negate = self._one(known), not self._pick(3)
        if self._pick(2):
            return Condition(about, Predicate.CONTAINS, ["a", "y", "i"][self._pick(3)], negate=negate)
        return Condition(about, Predicate.EQUALS, "yes", ("strip",), negate=negate)

    def _one(self, names: list[str]) -> str:
        return names[self._pick(len(names))]

    def _name(self) -> str:
        self._serial += 1
        return f"v{self._serial}"


def meaning(program: Program) -> dict[str, Outcome]:
    """What comes of each variable of a program."""
    known: dict[str, Outcome] = dict(program.given)
    for node in program.nodes:
        known.update(_call(node, known) if isinstance(node, NewCall) else _block(node, known))
    return known


def _all(node: NewCall | NewBlock, outcome: Outcome) -> dict[str, Outcome]:
    return {edge.variable_id: outcome for edge in node.outputs}


def _call(call: NewCall, known: Mapping[str, Outcome]) -> dict[str, Outcome]:
    texts = [known[edge.variable_id] for edge in call.inputs]
    lost = _lost([*texts, _asked(call.when, known)])
    if lost is not None:
        return _all(call, lost)
    made = FUNCTIONS[call.name]([str(text) for text in texts])
    return _all(call, FAILED if made is None else made)


def _asked(when: Condition | None, known: Mapping[str, Outcome]) -> Outcome:
    """What a condition makes of whoever asks: anything but a text ends it."""
    if when is None:
        return ""
    about = known[when.variable_id]
    return about if not isinstance(about, str) or holds(when, about) else SKIPPED


def _lost(needed: list[Outcome]) -> Outcome | None:
    ends = {id(end) for end in needed if not isinstance(end, str)}
    if not ends:
        return None
    if id(ANYTHING) in ends:
        return ANYTHING
    if id(EITHER) in ends or len(ends) > 1:
        return EITHER
    return SKIPPED if id(SKIPPED) in ends else FAILED


def _block(block: NewBlock, known: Mapping[str, Outcome]) -> dict[str, Outcome]:
    asked = _asked(block.when, known)
    if isinstance(block.plan, Select):
        return _all(block, _select(block.plan, known) if isinstance(asked, str) else asked)
    outer = [known[edge.variable_id] for edge in block.inputs]
    if any(end is EITHER or end is ANYTHING for end in (asked, *outer)):
        return _all(block, ANYTHING)
    failed = any(end is FAILED for end in outer)
    needed = [asked, known[block.plan.list_variable_id]] if isinstance(block.plan, Map) else [asked]
    lost = _lost(needed)
    if lost is not None or failed:
        return _all(block, EITHER if failed and lost in {SKIPPED, EITHER} else lost or FAILED)
    if isinstance(block.plan, Map):
        return _map(block, block.plan, known)
    return _loop(block, block.plan, known)


def _select(plan: Select, known: Mapping[str, Outcome]) -> Outcome:
    for name in plan.from_variable_ids:
        if known[name] is not SKIPPED:
            return ANYTHING if known[name] is EITHER else known[name]
    return SKIPPED


def _map(block: NewBlock, plan: Map, known: Mapping[str, Outcome]) -> dict[str, Outcome]:
    try:
        items = parse_value(str(known[plan.list_variable_id]))
    except NotApplicableError:
        return _all(block, FAILED)
    if not isinstance(items, list) or len(items) > plan.max_items:
        return _all(block, FAILED)
    rounds = [
        _body(plan, {**known, "item": shown(item), "index": str(place)}) for place, item in enumerate(items)
    ]
    lost = _worst([end for made in rounds for end in made.values()])
    if lost is not None:
        return _all(block, lost)
    found: dict[str, Outcome] = {}
    for collected in plan.collected:
        texts = [made[collected.body_variable_id] for made in rounds]
        kept = [str(text) for text in texts if text is not SKIPPED]
        whole = json.dumps(kept, separators=(",", ":")) if collected.joined_by is None else ", ".join(kept)
        found[collected.variable_id] = whole
    return found


def _loop(block: NewBlock, plan: Loop, known: Mapping[str, Outcome]) -> dict[str, Outcome]:
    carried = plan.carried[0]
    value = known[carried.initial_variable_id]
    for number in range(1, plan.max_rounds + 1):
        made = _body(plan, {**known, "carried": value})
        lost = _worst(list(made.values()))
        if lost is not None:
            return _all(block, lost)
        about = made[plan.until.variable_id]
        if not isinstance(about, str):
            return _all(block, SKIPPED)
        held = holds(plan.until, about)
        if held or (number == plan.max_rounds and not plan.must_hold):
            return {result.variable_id: made[result.body_variable_id] for result in plan.results}
        value = made[carried.next_variable_id]
    return _all(block, FAILED)


def _body(plan: Map | Loop, known: Mapping[str, Outcome]) -> dict[str, Outcome]:
    own = dict(known)
    made: dict[str, Outcome] = {}
    for call in plan.body:
        found = _call(call, own)
        own.update(found)
        made.update(found)
    return made


def _worst(ends: list[Outcome]) -> Outcome | None:
    if any(end is FAILED for end in ends):
        return FAILED
    return ANYTHING if any(end is EITHER or end is ANYTHING for end in ends) else None
