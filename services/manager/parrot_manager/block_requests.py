"""The blocks of a request, each checked by itself, and blocks as the store gives them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from parrot_manager import specs
from parrot_manager.call_requests import parse_call, read_call
from parrot_manager.condition_requests import Checks, check_id
from parrot_manager.core.blocks.checks import define
from parrot_manager.core.blocks.definitions import (
    Carried,
    Collected,
    ListForm,
    Listing,
    Loop,
    Map,
    NewBlock,
    Plan,
    Result,
    Select,
)
from parrot_manager.core.blocks.model import Block
from parrot_manager.core.submissions import NewCall
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_name, check_text, too_large


def parse_block(message: manager_pb2.NewBlock, field: str, checks: Checks) -> NewBlock:
    """A block that stands at `field` of its request.

    Raises:
        Fault: `invalid_request`, `invalid_text`, `invalid_template`, `invalid_sampling`, `invalid_block`,
            `duplicate_producer`, `cyclic_graph`, `too_large`.
    """
    check_name(message.name, f"{field}.name")
    checks.transforms.begin_call()
    if message.HasField("when"):
        checks.check_condition(message.when, f"{field}.when")
    kind = message.WhichOneof("kind")
    if kind is None:
        raise Fault(errors.INVALID_BLOCK, f"{field} is of no kind; give map, loop or select", field=field)
    _CHECKS[kind](getattr(message, kind), f"{field}.{kind}", checks)
    return read_block(message, field)


def with_plan(block: Block) -> Block:
    """A block with what its spec says."""
    if not block.spec:
        return block
    defined = read_block(manager_pb2.NewBlock.FromString(block.spec))
    return replace(block, plan=defined.plan, when=defined.when)


def read_block(message: manager_pb2.NewBlock, field: str = "") -> NewBlock:
    """A block whose parts are in order.

    Raises:
        Fault: `invalid_block`, `duplicate_producer`, `cyclic_graph`, `too_large`: together they are not.
    """
    when = specs.condition_of(message.when) if message.HasField("when") else None
    return define(message.name, _plan(message, field), when, message.SerializeToString(), field)


def _plan(message: manager_pb2.NewBlock, field: str) -> Plan:
    if message.HasField("map"):
        return _map(message.map, f"{field}.map")
    if message.HasField("loop"):
        return _loop(message.loop, f"{field}.loop")
    select = message.select
    return Select(tuple(select.from_variable_ids), select.variable_id, select.name)


def _map(message: manager_pb2.Map, field: str) -> Map:
    return Map(
        message.list_variable_id,
        _listing(message.form),
        message.item_variable_id,
        message.index_variable_id,
        _body(message.body, field),
        (),
        tuple(_collected(found) for found in message.collected),
        message.max_items,
    )


def _loop(message: manager_pb2.Loop, field: str) -> Loop:
    return Loop(
        _body(message.body, field),
        (),
        tuple(
            Carried(found.body_variable_id, found.initial_variable_id, found.next_variable_id)
            for found in message.carried
        ),
        specs.condition_of(message.until),
        message.max_rounds,
        tuple(Result(found.body_variable_id, found.variable_id, found.name) for found in message.results),
        message.must_hold,
    )


def _listing(message: manager_pb2.ListForm) -> Listing:
    if message.HasField("separator"):
        return Listing(ListForm.SEPARATED, message.separator)
    return Listing(ListForm.LINES if message.HasField("lines") else ListForm.JSON_ARRAY)


def _collected(message: manager_pb2.Collected) -> Collected:
    joined_by = message.joined_by if message.HasField("joined_by") else None
    return Collected(message.body_variable_id, message.variable_id, message.name, joined_by)


def _body(messages: Sequence[manager_pb2.NewCall], field: str) -> tuple[NewCall, ...]:
    return tuple(read_call(message, f"{field}.body[{place}]") for place, message in enumerate(messages))


def _check_map(message: manager_pb2.Map, field: str, checks: Checks) -> None:
    check_id(message.list_variable_id, f"{field}.list_variable_id")
    check_id(message.item_variable_id, f"{field}.item_variable_id")
    if message.index_variable_id:
        check_id(message.index_variable_id, f"{field}.index_variable_id")
    _check_listing(message.form, f"{field}.form")
    _check_body(message.body, field, checks)
    _check_count(message.collected, f"{field}.collected")
    for place, found in enumerate(message.collected):
        path = f"{field}.collected[{place}]"
        _check_made(found, path)
        check_text(found.joined_by, f"{path}.joined_by", limit_bytes=limits.TRANSFORM_BYTES)


def _check_loop(message: manager_pb2.Loop, field: str, checks: Checks) -> None:
    _check_body(message.body, field, checks)
    _check_count(message.carried, f"{field}.carried")
    for place, found in enumerate(message.carried):
        path = f"{field}.carried[{place}]"
        check_id(found.body_variable_id, f"{path}.body_variable_id")
        check_id(found.initial_variable_id, f"{path}.initial_variable_id")
    if not message.HasField("until"):
        why = f"{field}.until is missing; say what must hold for the loop to end"
        raise Fault(errors.INVALID_BLOCK, why, field=f"{field}.until")
    checks.transforms.begin_call()
    checks.check_condition(message.until, f"{field}.until")
    _check_count(message.results, f"{field}.results")
    for place, result in enumerate(message.results):
        _check_made(result, f"{field}.results[{place}]")


def _check_select(message: manager_pb2.Select, field: str, checks: Checks) -> None:
    for place, variable_id in enumerate(message.from_variable_ids):
        check_id(variable_id, f"{field}.from_variable_ids[{place}]")
    _check_made(message, field)


_CHECKS: Final[dict[str, Callable[[Any, str, Checks], None]]] = {
    "map": _check_map,
    "loop": _check_loop,
    "select": _check_select,
}


def _check_made(message: manager_pb2.Collected | manager_pb2.Result | manager_pb2.Select, field: str) -> None:
    check_id(message.variable_id, f"{field}.variable_id")
    check_name(message.name, f"{field}.name")


def _check_count(messages: Sequence[object], field: str) -> None:
    if len(messages) > limits.PLACEHOLDERS:
        raise too_large(field, len(messages), limits.PLACEHOLDERS, unit="variables")


def _check_listing(form: manager_pb2.ListForm, field: str) -> None:
    kind = form.WhichOneof("form")
    if kind is None or not getattr(form, kind):
        why = f"{field} says nothing; give json_array or lines as true, or a separator"
        raise Fault(errors.INVALID_BLOCK, why, field=field)
    if kind == "separator":
        check_text(form.separator, f"{field}.separator", limit_bytes=limits.TRANSFORM_BYTES)


def _check_body(messages: Sequence[manager_pb2.NewCall], field: str, checks: Checks) -> None:
    for place, message in enumerate(messages):
        parse_call(message, f"{field}.body[{place}]", checks)
