"""What stands before a request's own items: the responses before it, and items it names by their ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from parrot_gateway.gateway import Gateway
from parrot_gateway.openai.responses.ids import ResponseId, response_of_item
from parrot_gateway.openai.responses.items import InputItem, Item, MessageItem, ReferenceItem, with_ids
from parrot_gateway.openai.responses.record import parsed_items
from parrot_gateway.openai.responses.standing import Standing, standing_of
from parrot_runtime import errors
from parrot_runtime.errors import Fault

_FIELD = "previous_response_id"


async def earlier(gateway: Gateway, previous_id: str | None) -> list[dict[str, Any]]:
    """All items up to the end of a response, as they are kept; none, where there is none before.

    Raises:
        Fault: `previous_response_not_found`; `previous_response_not_done`; `unavailable`.
    """
    if previous_id is None:
        return []
    response = ResponseId.parse(previous_id)
    found = await _standing(gateway, response) if response is not None else None
    if found is None:
        raise Fault(
            errors.PREVIOUS_RESPONSE_NOT_FOUND,
            f"Previous response with id '{previous_id[:80]}' not found.",
            field=_FIELD,
        )
    if found.told.status not in {"completed", "incomplete"}:
        raise Fault(
            errors.PREVIOUS_RESPONSE_NOT_DONE,
            f"the previous response is {found.told.status}; go on after one that is completed",
            field=_FIELD,
        )
    return _all_items(found)


async def referred(gateway: Gateway, given: str | Sequence[InputItem]) -> list[Item]:
    """A request's own items, with those it names by their ids in their place.

    Raises:
        Fault: `invalid_request`, for the id of no item; `unavailable`.
    """
    if isinstance(given, str):
        return [MessageItem(role="user", content=given)]
    made: list[Item] = []
    for place, item in enumerate(given):
        if isinstance(item, ReferenceItem):
            made += await _named(gateway, item.id, f"input[{place}].id")
        else:
            made.append(item)
    return made


async def _named(gateway: Gateway, item_id: str, where: str) -> list[Item]:
    response = response_of_item(item_id)
    found = await _standing(gateway, response) if response is not None else None
    items = _all_items(found) if found is not None else []
    named = [item for item in items if item["id"] == item_id]
    if found is None or not named:
        raise Fault(
            errors.INVALID_REQUEST,
            f"Item with id '{item_id[:80]}' not found; send the item itself",
            field=where,
        )
    return parsed_items(named, found.told.response)


async def _standing(gateway: Gateway, response: ResponseId) -> Standing | None:
    try:
        return await standing_of(gateway, response)
    except Fault as fault:
        if fault.kind is errors.NOT_FOUND:
            return None
        raise


def _all_items(found: Standing) -> list[dict[str, Any]]:
    told = found.told
    return [*told.record.history, *with_ids(told.record.input, told.response), *told.output]
