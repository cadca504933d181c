"""Conditions within conditions mean what the program's indentation says, whatever they are about."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from hypothesis import given
from hypothesis import strategies as st

import parrot as P
from parrot.batch import requests

judge = P.define("judge", "{{x}} {{y}}", outputs={"y": Literal["good", "bad"]})
MISSING = object()
Pick = Callable[[int], int]


@dataclass
class Program:
    """A random program, written while it is told what each of its judges will say.

    Attributes:
        says: the text of each variable, should its call run.
        runs: whether it will, by the plainest reading.
    """

    pick: Pick
    session: P.Session
    says: dict[str, str] = field(default_factory=dict)
    runs: dict[str, bool] = field(default_factory=dict)
    known: list[P.SemanticVariable[Any]] = field(default_factory=list)

    def call(self, runs: bool) -> P.SemanticVariable[Any]:
        """A call, of a text, or of what another one made."""
        reads = self.known[self.pick(len(self.known))] if self.known and not self.pick(3) else None
        made: P.SemanticVariable[Any] = judge(reads if reads is not None else "x", session=self.session)
        self.says[made.id] = ["good", "bad"][self.pick(2)]
        self.runs[made.id] = runs and (reads is None or self.runs[reads.id])
        self.known.append(made)
        return made

    def block(self, runs: bool, depth: int) -> None:
        """Some calls, and conditions with blocks of their own."""
        for _ in range(1 + self.pick(3)):
            self.call(runs)
            if depth and self.pick(2):
                self.conditional(runs, depth)

    def conditional(self, runs: bool, depth: int) -> None:
        about = self.known[self.pick(len(self.known))]
        negate = bool(self.pick(2))
        holds = self.runs[about.id] and (self.says[about.id] == "good") != negate
        with P.when(about, equals="good", negate=negate):
            self.block(runs and holds, depth - 1)

    def choice(self) -> tuple[P.SemanticVariable[Any], object]:
        """A choice between two calls or variables, and which of them it is."""
        about = self.known[self.pick(len(self.known))]
        holds = self.says[about.id] == "good"
        chosen: list[P.SemanticVariable[Any]] = []

        def branch(runs: bool) -> P.SemanticVariable[Any]:
            made = self.call(runs) if self.pick(2) else self.known[self.pick(len(self.known))]
            if runs:
                chosen.append(made)
            return made

        runs = self.runs[about.id]
        result: P.SemanticVariable[Any] = P.cond(
            P.when(about, equals="good"),
            lambda: branch(runs and holds),
            lambda: branch(runs and not holds),
            session=self.session,
        )
        made = chosen[0] if chosen and self.runs[chosen[0].id] else None
        return result, MISSING if made is None else self.says[made.id]


def outcome(body: dict[str, Any], says: dict[str, str]) -> dict[str, object]:
    """What becomes of each variable of a batch, by what graphs.md says of conditions and selects."""
    values: dict[str, object] = {}
    waiting = [("call", call) for call in body["calls"]] + [
        ("block", block) for block in body.get("blocks", [])
    ]
    while waiting:
        left = [(kind, node) for kind, node in waiting if not _settle(kind, node, says, values)]
        assert len(left) < len(waiting), "they wait for one another"
        waiting = left
    return values


def _settle(kind: str, node: dict[str, Any], says: dict[str, str], values: dict[str, object]) -> bool:
    when = node.get("when")
    if when is not None and when["semantic_var_id"] not in values:
        return False
    if kind == "call":
        holes = node["placeholders"]
        reads = [p["semantic_var_id"] for p in holes if p["in_out"] == "in" and "semantic_var_id" in p]
        makes = next(p["semantic_var_id"] for p in holes if p["in_out"] == "out")
    else:
        reads, makes = node["select"]["from"], node["select"]["semantic_var_id"]
    if any(name not in values for name in reads):
        return False
    if when is not None:
        about = values[when["semantic_var_id"]]
        if about is MISSING or (about == when["equals"]) == when.get("negate", False):
            values[makes] = MISSING
            return True
    found = [values[name] for name in reads]
    if kind == "call":
        values[makes] = MISSING if MISSING in found else says[makes]
    else:
        values[makes] = next((value for value in found if value is not MISSING), MISSING)
    return True


@given(st.data())
def test_a_call_runs_exactly_where_all_conditions_around_it_hold(data: st.DataObject) -> None:
    session = P.Session()
    session._id = "s00-0123456789abcdef"
    program = Program(lambda n: data.draw(st.integers(0, n - 1)), session)
    program.block(True, 3)
    choices = [program.choice() for _ in range(program.pick(3))]
    (request,) = requests(*session._outbox._pending.take())
    values = outcome(request.body, program.says)
    for variable in program.known:
        assert (values[variable.id] is not MISSING) == program.runs[variable.id]
    for variable, value in choices:
        assert values[variable.id] == value
