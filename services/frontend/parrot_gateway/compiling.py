"""Turns batches as clients send them into batches as the manager takes them, and refuses what is wrong.

All limits are enforced here, before the manager is asked for anything. A value can't become template
text: it travels beside the template, as a variable of its own.
"""

from __future__ import annotations

import asyncio
from typing import Final

from parrot_gateway import models
from parrot_gateway.block_compiling import compile_block
from parrot_gateway.call_compiling import compile_call
from parrot_gateway.compiled import Compiled, check_id
from parrot_gateway.new_blocks import NewBatch, NewBlock
from parrot_gateway.new_calls import NewCall, NewCondition, SandboxRun
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_name, check_text, too_large

INLINE_CHARS: Final = 65_536
INLINE_CALLS: Final = 64
"""More is compiled off the event loop, which others wait for."""


async def compiled_calls(sent: NewBatch | NewCall, key: str = "") -> Compiled:
    """As `compile_calls`, without keeping the event loop.

    Raises:
        Fault: what is wrong with it, with the path of the field.
    """
    calls = [*calls_of(sent), *(call for block in blocks_of(sent) for call in body_of(block))]
    if len(calls) <= INLINE_CALLS and sum(map(_chars, calls)) <= INLINE_CHARS:
        return compile_calls(sent, key)
    return await asyncio.to_thread(compile_calls, sent, key)


def compile_calls(sent: NewBatch | NewCall, key: str = "") -> Compiled:
    """The batch a request describes; `key`: see `Compiled`.

    Raises:
        Fault: what is wrong with it, with the path of the field.
    """
    compiled = Compiled(key)
    if isinstance(sent, NewCall):
        _add_call(compiled, sent, "")
    else:
        _compile_batch(compiled, sent)
    if compiled.size_bytes > limits.BATCH_BYTES:
        raise too_large(
            "the batch's templates, values, transforms and guides", compiled.size_bytes, limits.BATCH_BYTES
        )
    return compiled


def calls_of(sent: NewBatch | NewCall) -> list[NewCall]:
    """The calls of a request, in its order, without those of its blocks' bodies."""
    return sent.calls if isinstance(sent, NewBatch) else [sent]


def blocks_of(sent: NewBatch | NewCall) -> list[NewBlock]:
    """The blocks of a request, in its order."""
    return sent.blocks if isinstance(sent, NewBatch) else []


def body_of(block: NewBlock) -> list[NewCall]:
    """The calls of a block's body, in its order."""
    found = block.map or block.loop
    return found.body if found is not None else []


def check_value(sent: models.VariableValue, variable_id: str) -> None:
    """Checks a value that a client sets.

    Raises:
        Fault: what is wrong with it.
    """
    check_id(variable_id, "semantic_var_id")
    check_text(sent.value, "value", limit_bytes=limits.VALUE_BYTES)
    check_name(sent.name, "name")


def _chars(call: NewCall) -> int:
    """What of a call takes time to check."""
    settings = [placeholder.sampling for placeholder in call.placeholders]
    schemas = [s.guide.json_schema or "" for s in settings if s is not None and s.guide is not None]
    names = [name for placeholder in call.placeholders for name in placeholder.transforms]
    texts = [call.prompt or "", *schemas, *names, *_condition_texts(call.when)]
    texts += [message.content for message in call.messages or ()]
    if isinstance(call.native, SandboxRun):
        texts.append(call.native.source)
    return sum(map(len, texts))


def _condition_texts(condition: NewCondition | None) -> list[str]:
    if condition is None:
        return []
    _, asked = condition.test
    return [asked] if isinstance(asked, str) else []


def _compile_batch(compiled: Compiled, batch: NewBatch) -> None:
    if not (batch.calls or batch.blocks or batch.variables):
        why = "calls is empty, and so is the rest; send at least one call, block or variable"
        raise Fault(errors.INVALID_REQUEST, why, field="calls")
    for what, count, limit in (
        ("calls", len(batch.calls), limits.BATCH_CALLS),
        ("blocks", len(batch.blocks), limits.BATCH_BLOCKS),
        ("variables", len(batch.variables), limits.BATCH_CALLS),
    ):
        if count > limit:
            raise too_large(what, count, limit, unit="entries")
    for index, value in enumerate(batch.variables):
        where = f"variables[{index}]"
        check_id(value.semantic_var_id, f"{where}.semantic_var_id")
        check_name(value.name, f"{where}.name")
        compiled.add_text(value.value, f"{where}.value", limits.VALUE_BYTES)
        compiled.values.append(
            manager_pb2.NewValue(variable_id=value.semantic_var_id, name=value.name, value=value.value)
        )
    for index, call in enumerate(batch.calls):
        _add_call(compiled, call, f"calls[{index}].")
    for index, block in enumerate(batch.blocks):
        compiled.blocks.append(compile_block(compiled, block, f"blocks[{index}]"))


def _add_call(compiled: Compiled, call: NewCall, at: str) -> None:
    made, placeholders = compile_call(compiled, call, at)
    compiled.calls.append(made)
    compiled.placeholders.append(placeholders)
