"""One block, from the client's form to the manager's."""

from __future__ import annotations

from collections.abc import Sequence

from parrot_gateway.call_compiling import compile_call
from parrot_gateway.compiled import Compiled, check_id
from parrot_gateway.conditions import compile_condition
from parrot_gateway.new_blocks import (
    NewBlock,
    NewCarried,
    NewCollected,
    NewLoop,
    NewMap,
    NewResult,
    NewSelect,
    Separated,
)
from parrot_gateway.new_calls import NewCall
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_name, too_large


def compile_block(compiled: Compiled, block: NewBlock, at: str) -> manager_pb2.NewBlock:
    """A block that stands at `at` of its request.

    Raises:
        Fault: what is wrong with it, with the path of the field.
    """
    check_name(block.name, f"{at}.name")
    compiled.transforms.begin_call()
    when = compile_condition(compiled, block.when, f"{at}.when") if block.when is not None else None
    made = manager_pb2.NewBlock(name=block.name, when=when)
    if block.map is not None:
        made.map.CopyFrom(_map(compiled, block.map, f"{at}.map"))
    elif block.loop is not None:
        made.loop.CopyFrom(_loop(compiled, block.loop, f"{at}.loop"))
    elif block.select is not None:
        made.select.CopyFrom(_select(compiled, block.select, f"{at}.select"))
    return made


def _map(compiled: Compiled, sent: NewMap, at: str) -> manager_pb2.Map:
    check_id(sent.items, f"{at}.list")
    check_id(sent.item, f"{at}.item")
    if sent.index:
        check_id(sent.index, f"{at}.index")
    _check_some(sent.collected, f"{at}.collected")
    return manager_pb2.Map(
        list_variable_id=sent.items,
        form=_form(compiled, sent, at),
        item_variable_id=sent.item,
        index_variable_id=sent.index,
        body=_body(compiled, sent.body, at),
        collected=[
            _collected(compiled, found, f"{at}.collected[{place}]")
            for place, found in enumerate(sent.collected)
        ],
        max_items=sent.max_items or 0,
    )


def _form(compiled: Compiled, sent: NewMap, at: str) -> manager_pb2.ListForm:
    if isinstance(sent.form, Separated):
        compiled.add_text(sent.form.separator, f"{at}.form.separator", limits.TRANSFORM_BYTES)
        return manager_pb2.ListForm(separator=sent.form.separator)
    if sent.form == "lines":
        return manager_pb2.ListForm(lines=True)
    return manager_pb2.ListForm(json_array=True)


def _collected(compiled: Compiled, sent: NewCollected, at: str) -> manager_pb2.Collected:
    if sent.joined_by is not None:
        compiled.add_text(sent.joined_by, f"{at}.joined_by", limits.TRANSFORM_BYTES)
    return manager_pb2.Collected(
        body_variable_id=sent.source,
        variable_id=_made(compiled, sent, at),
        name=sent.name or sent.source,
        joined_by=sent.joined_by,
    )


def _loop(compiled: Compiled, sent: NewLoop, at: str) -> manager_pb2.Loop:
    _check_some(sent.results, f"{at}.results")
    if len(sent.carried) > limits.PLACEHOLDERS:
        raise too_large(f"{at}.carried", len(sent.carried), limits.PLACEHOLDERS, unit="variables")
    body = _body(compiled, sent.body, at)
    compiled.transforms.begin_call()
    return manager_pb2.Loop(
        body=body,
        carried=[_carried(found, f"{at}.carried[{place}]") for place, found in enumerate(sent.carried)],
        until=compile_condition(compiled, sent.until, f"{at}.until"),
        max_rounds=sent.max_rounds,
        results=[
            manager_pb2.Result(
                body_variable_id=found.source,
                variable_id=_made(compiled, found, f"{at}.results[{place}]"),
                name=found.name or found.source,
            )
            for place, found in enumerate(sent.results)
        ],
        must_hold=sent.must_hold,
    )


def _carried(sent: NewCarried, at: str) -> manager_pb2.Carried:
    for name, variable_id in (("body", sent.body), ("initial", sent.initial), ("next", sent.next)):
        check_id(variable_id, f"{at}.{name}")
    return manager_pb2.Carried(
        body_variable_id=sent.body, initial_variable_id=sent.initial, next_variable_id=sent.next
    )


def _select(compiled: Compiled, sent: NewSelect, at: str) -> manager_pb2.Select:
    if len(sent.source) > limits.SELECT_VARIABLES:
        raise too_large(f"{at}.from", len(sent.source), limits.SELECT_VARIABLES, unit="variables")
    for place, variable_id in enumerate(sent.source):
        check_id(variable_id, f"{at}.from[{place}]")
    check_name(sent.name, f"{at}.name")
    if sent.semantic_var_id is not None:
        check_id(sent.semantic_var_id, f"{at}.semantic_var_id")
    made_id = sent.semantic_var_id if sent.semantic_var_id is not None else compiled.new_id()
    return manager_pb2.Select(from_variable_ids=sent.source, variable_id=made_id, name=sent.name)


def _body(compiled: Compiled, calls: Sequence[NewCall], at: str) -> list[manager_pb2.NewCall]:
    if len(calls) > limits.BODY_CALLS:
        raise too_large(f"{at}.body", len(calls), limits.BODY_CALLS, unit="calls")
    return [
        compile_call(compiled, call, f"{at}.body[{place}].", in_body=True)[0]
        for place, call in enumerate(calls)
    ]


def _made(compiled: Compiled, sent: NewCollected | NewResult, at: str) -> str:
    """The id of a variable of the session that a block makes."""
    check_id(sent.source, f"{at}.from")
    check_name(sent.name, f"{at}.name")
    if sent.semantic_var_id is None:
        return compiled.new_id()
    check_id(sent.semantic_var_id, f"{at}.semantic_var_id")
    return sent.semantic_var_id


def _check_some(found: Sequence[object], where: str) -> None:
    """A block that makes nothing, or more than it may.

    Raises:
        Fault: `invalid_block`, `too_large`.
    """
    if not found:
        why = f"{where} is empty, so nothing comes of the block; name what to take from it"
        raise Fault(errors.INVALID_BLOCK, why, field=where)
    if len(found) > limits.PLACEHOLDERS:
        raise too_large(where, len(found), limits.PLACEHOLDERS, unit="variables")
