"""Whether a block is one: its body by itself, and how it hangs together with the session."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from parrot_manager.core.blocks.definitions import Loop, Map, NewBlock, Plan, Select
from parrot_manager.core.blocks.names import is_reserved, suffix_of
from parrot_manager.core.conditions import Condition
from parrot_manager.core.graph import check_outputs, topological_order
from parrot_manager.core.model import Edge
from parrot_manager.core.submissions import NewCall
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import too_large


@dataclass(frozen=True, slots=True)
class Needs:
    """A call or block, as far as order is concerned: what its condition is about is an input too."""

    name: str
    path: str
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]


def needs_of(new: NewCall | NewBlock, path: str = "") -> Needs:
    """What a call or block of a request reads and makes."""
    asked = (Edge("when", new.when.variable_id),) if new.when is not None else ()
    outputs = tuple(Edge(edge.name or edge.variable_id, edge.variable_id) for edge in new.outputs)
    return Needs(new.name, new.path or path, new.inputs + asked, outputs)


def check_names(nodes: Iterable[Needs]) -> None:
    """Refuses outputs with an id of the form that blocks give.

    Raises:
        Fault: `invalid_request`.
    """
    for node in nodes:
        for edge in node.outputs:
            check_name(edge.variable_id, f"{node.path}.{edge.name}")


def check_name(variable_id: str, field: str) -> None:
    """Refuses an id of the form that blocks give.

    Raises:
        Fault: `invalid_request`.
    """
    if is_reserved(variable_id):
        raise Fault(
            errors.INVALID_REQUEST,
            f"{field} is {variable_id!r}; ids that begin with 'b-', digits and '-' are those of blocks'"
            " instances; take another one",
            field=field,
            variable_id=variable_id,
        )


def define(name: str, plan: Plan, when: Condition | None, spec: bytes, path: str) -> NewBlock:
    """A block that is in order, its body sorted, with what it reads and makes.

    Raises:
        Fault: `invalid_block`, `duplicate_producer`, `cyclic_graph`, `too_large`.
    """
    if isinstance(plan, Map):
        inputs, outputs, plan = _define_map(plan, f"{path}.map")
    elif isinstance(plan, Loop):
        inputs, outputs, plan = _define_loop(plan, f"{path}.loop")
    else:
        inputs, outputs = _define_select(plan, f"{path}.select")
    return NewBlock(name, plan, inputs, outputs, spec, when, path)


Defined = tuple[tuple[Edge, ...], tuple[Edge, ...], Plan]


def _define_map(plan: Map, path: str) -> Defined:
    own = {plan.item_variable_id: f"{path}.item_variable_id"}
    if plan.index_variable_id:
        if plan.index_variable_id in own:
            raise _twice(f"{path}.index_variable_id", plan.index_variable_id, own[plan.item_variable_id])
        own[plan.index_variable_id] = f"{path}.index_variable_id"
    body = _Body(plan.body, own, path)
    plan = replace(plan, order=body.order, max_items=_instances(plan, path))
    if not plan.collected:
        raise _invalid(f"{path}.collected", "is empty, so nothing comes of the map; name what to collect")
    for place, found in enumerate(plan.collected):
        body.check_output(found.body_variable_id, f"{path}.collected[{place}].body_variable_id")
    edges = (Edge("map.list_variable_id", plan.list_variable_id), *body.outer())
    return edges, tuple(Edge(found.name, found.variable_id) for found in plan.collected), plan


def _define_loop(plan: Loop, path: str) -> Defined:
    own: dict[str, str] = {}
    for place, carried in enumerate(plan.carried):
        where = f"{path}.carried[{place}].body_variable_id"
        if carried.body_variable_id in own:
            raise _twice(where, carried.body_variable_id, own[carried.body_variable_id])
        own[carried.body_variable_id] = where
    body = _Body(plan.body, own, path)
    _instances(plan, path)
    for place, carried in enumerate(plan.carried):
        body.check_output(carried.next_variable_id, f"{path}.carried[{place}].next_variable_id")
    body.check_output(plan.until.variable_id, f"{path}.until.variable_id")
    if not plan.results:
        raise _invalid(f"{path}.results", "is empty, so nothing comes of the loop; name its results")
    for place, found in enumerate(plan.results):
        body.check_output(found.body_variable_id, f"{path}.results[{place}].body_variable_id")
    initial = tuple(
        Edge(f"loop.carried[{place}].initial_variable_id", carried.initial_variable_id)
        for place, carried in enumerate(plan.carried)
    )
    outputs = tuple(Edge(found.name, found.variable_id) for found in plan.results)
    return (*initial, *body.outer()), outputs, replace(plan, order=body.order)


def _define_select(plan: Select, path: str) -> tuple[tuple[Edge, ...], tuple[Edge, ...]]:
    where = f"{path}.from_variable_ids"
    if not plan.from_variable_ids:
        raise _invalid(where, "is empty; name the variables to select from, the preferred one first")
    if len(plan.from_variable_ids) > limits.SELECT_VARIABLES:
        raise too_large(where, len(plan.from_variable_ids), limits.SELECT_VARIABLES, unit="variables")
    edges = tuple(
        Edge(f"select.from_variable_ids[{place}]", name) for place, name in enumerate(plan.from_variable_ids)
    )
    return edges, (Edge(plan.name, plan.variable_id),)


class _Body:
    """The calls of a body, sorted; `own` are the names that come to them from their block."""

    def __init__(self, calls: Sequence[NewCall], own: Mapping[str, str], path: str) -> None:
        if not calls:
            raise _invalid(f"{path}.body", "is empty; give it the calls to repeat")
        if len(calls) > limits.BODY_CALLS:
            raise too_large(f"{path}.body", len(calls), limits.BODY_CALLS, unit="calls")
        self._nodes = [needs_of(call, f"{path}.body[{place}]") for place, call in enumerate(calls)]
        producers = check_outputs(self._nodes, (), dict(own))
        self.order = tuple(topological_order(self._nodes, producers))
        self._outputs = list(producers)
        self._own = {*own, *producers}
        self._kind = path.rpartition(".")[2]
        self._check_suffixes(path)

    def check_output(self, variable_id: str, path: str) -> None:
        """Refuses a name that no call of the body makes."""
        if variable_id not in self._outputs:
            shown = ", ".join(self._outputs[: limits.BODY_CALLS])
            raise _invalid(path, f"is {variable_id!r}, which no call of the body makes; they make: {shown}")

    def outer(self) -> Iterator[Edge]:
        """What the body reads of the session, each variable once."""
        seen = set(self._own)
        for place, node in enumerate(self._nodes):
            for edge in node.inputs:
                if edge.variable_id not in seen:
                    seen.add(edge.variable_id)
                    yield Edge(f"{self._kind}.body[{place}].{edge.name}", edge.variable_id)

    def _check_suffixes(self, path: str) -> None:
        taken: dict[str, str] = {}
        for name in sorted(self._own):
            other = taken.setdefault(suffix_of(name), name)
            if other != name:
                raise _invalid(f"{path}.body", f"has {name!r} and {other!r}, too alike; rename one")


def _instances(plan: Map | Loop, path: str) -> int:
    """How often the body may be there at the most."""
    setting, limit = (
        ("max_items", limits.MAP_ITEMS) if isinstance(plan, Map) else ("max_rounds", limits.LOOP_ROUNDS)
    )
    most = min(limit, limits.BLOCK_CALLS // len(plan.body))
    if isinstance(plan, Map) and plan.max_items == 0:
        return most
    if not 1 <= plan.instances <= most:
        raise _invalid(
            f"{path}.{setting}",
            f"is {plan.instances}; with a body of {len(plan.body)} calls it is 1 to {most}",
        )
    return plan.instances


def _twice(path: str, variable_id: str, other: str) -> Fault:
    return _invalid(path, f"is {variable_id!r}, as is {other}; the body's names differ from one another")


def _invalid(path: str, why: str) -> Fault:
    return Fault(errors.INVALID_BLOCK, f"{path} {why}", field=path)
