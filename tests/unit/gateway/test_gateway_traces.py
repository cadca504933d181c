"""Critical paths of large sessions are computed one at a time, whoever asks."""

from __future__ import annotations

import asyncio
import json
from threading import Barrier, BrokenBarrierError, get_ident
from types import SimpleNamespace
from typing import Any, cast

import pytest

from parrot_gateway.gateway import Gateway
from parrot_gateway.routes import traces
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime.critical_path import Analysis, SessionTimes, analyse

pytestmark = pytest.mark.anyio


class Manager:
    """Knows every session."""

    async def get_session(self, session_id: str) -> manager_pb2.GetSessionResponse:
        """An empty one."""
        session = manager_pb2.Session(id=session_id, created_unix_ms=1_000, ended_unix_ms=2_000)
        return manager_pb2.GetSessionResponse(session=session)


async def test_analyses_are_made_one_at_a_time_and_not_where_requests_are_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    two, met, threads = Barrier(2), list[bool](), set[int]()

    def watched(times: SessionTimes, now_ms: float) -> Analysis:
        threads.add(get_ident())
        try:
            two.wait(0.1)
            met.append(True)
        except BrokenBarrierError:
            met.append(False)
        return analyse(times, now_ms)

    monkeypatch.setattr(traces, "analyse", watched)
    gateway = cast(Gateway, SimpleNamespace(manager=Manager()))
    answers = await asyncio.gather(*(traces.get_trace(gateway, f"s-{number}") for number in range(3)))
    assert met == [False] * 3
    assert get_ident() not in threads
    told: list[dict[str, Any]] = [json.loads(bytes(answer.body)) for answer in answers]
    assert [one["session_id"] for one in told] == ["s-0", "s-1", "s-2"]
    assert {one["total_ms"] for one in told} == {1_000}
