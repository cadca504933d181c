"""Responses outlive every process: what was made is read and gone on from after all were restarted."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from tests.support.up import Up, data_folder, running

pytestmark = pytest.mark.timeout(180)

ENV = {"PARROT_SIM_STEP_MS": "1"}


def client_of(up: Up) -> OpenAI:
    """The official client."""
    return OpenAI(base_url=f"{up.url}/v1", api_key="none", max_retries=0, timeout=60)


def followed(up: Up, response_id: str, after: int | None = None) -> list[dict[str, Any]]:
    """A response's events, all of them or those after a number."""
    params: dict[str, Any] = {"stream": "true"} | ({"starting_after": after} if after is not None else {})
    lines = httpx.get(f"{up.url}/v1/responses/{response_id}", params=params, timeout=60).text.splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def text_of(events: list[dict[str, Any]]) -> str:
    """What deltas add up to."""
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def test_a_response_is_there_after_a_restart_of_everything() -> None:
    with data_folder() as folder:
        with running(folder, "--backend", "sim", env=ENV) as up, client_of(up) as client:
            up.wait_up()
            made = client.responses.create(model="sim", input="One?", max_output_tokens=60, instructions="x")
            deleted = client.responses.create(model="sim", input="A secret.", max_output_tokens=4)
            client.responses.delete(deleted.id)
            events = followed(up, made.id)
            assert up.stop() == 0
        with running(folder, "--backend", "sim", env=ENV) as up, client_of(up) as client:
            up.wait_up()

            assert client.responses.retrieve(made.id) == made
            assert text_of(followed(up, made.id)) == text_of(events) == made.output_text
            place = events[len(events) // 2]["sequence_number"]
            before = [event for event in events if event["sequence_number"] <= place]
            assert text_of(before) + text_of(followed(up, made.id, place)) == made.output_text
            gone_on = client.responses.create(
                model="sim", input="Two?", previous_response_id=made.id, max_output_tokens=8
            )
            items = client.responses.input_items.list(gone_on.id, order="asc").data
            assert [item.id for item in items][1] == made.output[0].id
            assert len(items) == 3
            with pytest.raises(openai.NotFoundError):
                client.responses.retrieve(deleted.id)
            assert up.stop() == 0
