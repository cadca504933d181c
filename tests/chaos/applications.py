"""Small applications, one after another, whose clients do not give up."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any, Final

import httpx
from tests.chaos.chronicles import follow_session
from tests.chaos.transcripts import Transcript, follow

PAUSE_S: Final = 0.2
LONGEST_TOKENS: Final = 120
APART_S: Final = 0.5


@dataclass
class Record:
    """What clients were told and what readers read.

    Attributes:
        accepted: the ids of the calls of each session, as the gateway answered.
        complaints: answers that no client should have got.
    """

    accepted: dict[str, list[str]] = field(default_factory=dict)
    transcripts: list[Transcript] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    unfinished: set[str] = field(default_factory=set)


class Clients:
    """Runs applications until told to stop, so many at once."""

    def __init__(self, url: str, chance: random.Random, at_once: int = 6) -> None:
        self.record = Record()
        self._http = httpx.AsyncClient(base_url=url, timeout=30, limits=httpx.Limits(max_connections=200))
        self._chance = chance
        self._at_once = at_once
        self._stop = asyncio.Event()

    async def run(self) -> None:
        """Returns once it was told to stop, and every reader has read to the end."""
        async with self._http, asyncio.TaskGroup() as group:
            for _ in range(self._at_once):
                group.create_task(self._one_after_another())

    def stop(self) -> None:
        """Begins no further application."""
        self._stop.set()

    async def _one_after_another(self) -> None:
        while not self._stop.is_set():
            await self._application(f"{self._chance.getrandbits(64):x}", random_calls(self._chance))

    async def _application(self, key: str, calls: list[dict[str, Any]]) -> None:
        session = await self._post("/v1/sessions", {"label": "chaos"}, key)
        session_id = session["id"]
        self.record.unfinished.add(session_id)
        outputs = [f"v{place}" for place in range(len(calls))]
        async with asyncio.TaskGroup() as group:
            group.create_task(self._hear(session_id, outputs))
            batch = await self._post(f"/v1/sessions/{session_id}/calls", {"calls": calls}, key)
            self.record.accepted[session_id] = [call["id"] for call in batch["calls"]]
            for variable_id in outputs:
                group.create_task(self._read(session_id, variable_id, 0))
            group.create_task(self._read(session_id, self._chance.choice(outputs), APART_S))
        self.record.unfinished.discard(session_id)

    async def _read(self, session_id: str, variable_id: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        self.record.transcripts.append(await follow(self._http, session_id, variable_id))

    async def _hear(self, session_id: str, outputs: list[str]) -> None:
        self.record.transcripts += await follow_session(self._http, session_id, outputs)

    async def _post(self, path: str, body: dict[str, Any], key: str) -> dict[str, Any]:
        """Asks until it is done; its key makes that one and the same."""
        while True:
            try:
                answer = await self._http.post(path, json=body, headers={"Idempotency-Key": key})
            except httpx.HTTPError:
                await asyncio.sleep(PAUSE_S)
                continue
            if answer.is_success:
                done: dict[str, Any] = answer.json()
                return done
            if answer.status_code != 503:
                self.record.complaints.append(f"{path}: {answer.status_code} {answer.text}")
            await asyncio.sleep(PAUSE_S)


def random_calls(chance: random.Random) -> list[dict[str, Any]]:
    """A graph of one to five calls: each reads a client's value or one or two outputs before it."""
    return [_call(chance, place) for place in range(chance.randint(1, 5))]


def _call(chance: random.Random, place: int) -> dict[str, Any]:
    sources = chance.sample(range(place), min(place, chance.randint(0, 2)))
    inputs: list[dict[str, Any]] = [
        {"name": f"i{source}", "in_out": "in", "semantic_var_id": f"v{source}"} for source in sources
    ]
    if not inputs:
        inputs.append({"name": "given", "in_out": "in", "value": f"{chance.random()}"})
    sampling = {"max_tokens": chance.randint(1, LONGEST_TOKENS), "ignore_eos": True, "temperature": 1.0}
    output = {"name": "o", "in_out": "out", "semantic_var_id": f"v{place}", "sampling": sampling}
    holes = " ".join(f"{{{{{hole['name']}}}}}" for hole in inputs)
    return {
        "name": f"step-{place}",
        "prompt": f"Of {holes} make this: {{{{o}}}}",
        "placeholders": [*inputs, output],
    }
