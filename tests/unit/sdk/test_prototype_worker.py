"""Native calls are claimed, kept and told of, whatever the server answers meanwhile."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import pytest

from parrot import watching
from parrot.compat import instances, native, worker
from parrot.compat.instances import Instances
from parrot.compat.worker import Work, serve
from parrot.errors import RequestRefused, ServerUnavailable
from parrot.watching import SessionEvent

pytestmark = pytest.mark.anyio

CLAIMED: dict[str, Any] = {"state": "claimed", "inputs": {"text": "hello"}, "lease_s": 0.03}
WAITING: dict[str, Any] = {"state": "waiting", "inputs": {}, "lease_s": None}


class Server:
    """Stands for a session and its server: answers each kind of request in turn, the last one for ever."""

    def __init__(self, **answers: list[Any]) -> None:
        self.id = "s00-0000000000000000"
        self.answers: dict[str, list[Any]] = {
            "claim": [CLAIMED],
            "renew": [{"lease_s": 0.03}],
            "result": [{"state": "done"}],
            **answers,
        }
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.spawned: list[asyncio.Task[Any]] = []
        self._client = self

    async def request(self, method: str, path: str, *, body: dict[str, Any], **more: Any) -> Any:
        kind = path.rpartition("/")[2]
        assert method == "POST"
        assert path == f"/v1/sessions/{self.id}/calls/c-1/{kind}"
        self.asked.append((kind, {name: value for name, value in body.items() if name != "worker"}))
        turns = self.answers[kind]
        answer = turns.pop(0) if len(turns) > 1 else turns[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self.spawned.append(asyncio.get_running_loop().create_task(work))

    def told(self) -> list[dict[str, Any]]:
        """The results it was told."""
        return [body for kind, body in self.asked if kind == "result"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PAUSE_S", 0.001)
    monkeypatch.setattr(instances, "PAUSE_S", 0.001)


def refused(status: int, problem: str = "claim_lost") -> RequestRefused:
    return RequestRefused("no", type=problem, status=status)


def shouting(texts: Mapping[str, str]) -> dict[str, str]:
    return {"loud": texts["text"].upper()}


async def served(server: Server, run: Callable[[Mapping[str, str]], dict[str, str]] = shouting) -> Server:
    session: Any = server
    await asyncio.wait_for(serve(session, "c-1", Work("shout", run, None)), 20)
    return server


async def test_a_call_is_claimed_once_its_inputs_are_there_and_its_outputs_are_told() -> None:
    server = await served(Server(claim=[WAITING, WAITING, CLAIMED]))
    assert [kind for kind, _ in server.asked] == ["claim", "claim", "claim", "result"]
    assert server.told() == [{"outputs": {"loud": "HELLO"}}]


async def test_a_server_that_is_away_or_full_for_a_while_is_asked_again() -> None:
    away = ServerUnavailable("away")
    server = await served(
        Server(
            claim=[away, refused(429, "rate_limited"), refused(503, "unavailable"), CLAIMED],
            result=[away, refused(500, "internal"), {"state": "done"}],
        )
    )
    assert [kind for kind, _ in server.asked] == ["claim"] * 4 + ["result"] * 3


async def test_a_claim_is_renewed_while_the_function_runs() -> None:
    enough = threading.Event()

    class Renewed(Server):
        async def request(self, method: str, path: str, *, body: dict[str, Any], **more: Any) -> Any:
            answer = await super().request(method, path, body=body, **more)
            if sum(kind == "renew" for kind, _ in self.asked) == 3:
                enough.set()
            return answer

    def waits(texts: Mapping[str, str]) -> dict[str, str]:
        return {"loud": str(enough.wait(20))}

    server = await served(Renewed(renew=[ServerUnavailable("away"), {"lease_s": 0.03}]), waits)
    assert server.told() == [{"outputs": {"loud": "True"}}]


async def test_nothing_is_told_of_a_call_whose_claim_is_lost_while_it_runs() -> None:
    ended = threading.Event()

    def waits(texts: Mapping[str, str]) -> dict[str, str]:
        ended.wait(20)
        return {"loud": "late"}

    server = await served(Server(renew=[refused(409)]), waits)
    ended.set()
    assert server.told() == []


async def test_a_call_that_ended_before_it_was_claimed_is_left_alone() -> None:
    server = await served(Server(claim=[WAITING, refused(409)]))
    assert server.told() == []


async def test_what_the_function_raises_is_told_as_text(caplog: pytest.LogCaptureFixture) -> None:
    def broken(texts: Mapping[str, str]) -> dict[str, str]:
        raise KeyError("half a character \ud800" + 1000 * "x")

    server = await served(Server(), broken)
    ((error,),) = [list(told.values()) for told in server.told()]
    assert error["message"].startswith("shout raised KeyError: 'half a character ")
    assert len(error["message"].encode()) <= worker.ERROR_CHARS
    assert "the native function shout failed" in caplog.text


async def test_even_an_exit_of_the_function_only_fails_its_call() -> None:
    def leaving(texts: Mapping[str, str]) -> dict[str, str]:
        raise SystemExit(3)

    server = await served(Server(), leaving)
    assert "SystemExit" in server.told()[0]["error"]["message"]


async def test_outputs_that_are_refused_fail_the_call_with_the_reason() -> None:
    server = await served(Server(result=[refused(413, "too_large"), {"state": "failed"}]))
    first, second = server.told()
    assert first == {"outputs": {"loud": "HELLO"}}
    assert second == {"error": {"message": "what shout made was refused: too_large: no"}}


async def test_a_function_that_runs_too_long_fails_its_call() -> None:
    release = threading.Event()
    server = Server()
    session: Any = server
    work = Work("slow", lambda texts: {"loud": str(release.wait(20))}, 0.01)
    await asyncio.wait_for(serve(session, "c-1", work), 20)
    release.set()
    assert server.told() == [{"error": {"message": "slow ran for more than 0.01 s, its timeout"}}]


def instance(call_id: str, block_id: str = "b-1", name: str = "shout") -> SessionEvent:
    return SessionEvent("call", {"id": call_id, "block_id": block_id, "name": name}, "")


async def test_instances_are_served_once_whether_they_are_heard_of_before_or_after_their_block(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served_ids: list[tuple[str, str]] = []

    async def note(session: Any, call_id: str, work: Work) -> None:
        served_ids.append((call_id, work.name))

    async def nothing(client: Any, path: str, timeout_s: float | None) -> Any:
        for event in list[SessionEvent]():
            yield event

    monkeypatch.setattr(instances, "serve", note)
    monkeypatch.setattr(watching, "events", nothing)
    server: Any = Server()
    board = Instances(server)
    board.see(instance("c-2"))
    board.know("b-1", Work("shout", shouting, None))
    for event in (instance("c-3"), instance("c-2"), instance("c-4", name="other"), instance("c-5", "b-2")):
        board.see(event)
    board.see(SessionEvent("call", {"id": "c-6", "block_id": "", "name": "shout"}, ""))
    board.see(SessionEvent("block", {"id": "b-1", "name": "shout"}, ""))
    await asyncio.gather(*server.spawned)
    assert served_ids == [("c-2", "shout"), ("c-3", "shout")]


@pytest.mark.parametrize("claiming", [1, 64, 65, 200, 640, 6_400])
def test_however_many_calls_wait_each_has_its_turn_in_time_and_few_are_asked_for(claiming: int) -> None:
    wait_s = worker._wait_s(claiming)
    at_once = min(claiming, worker.CLAIMS_AT_ONCE)
    assert wait_s * claiming / at_once <= worker.LONGEST_TURN_S < native.CLAIM_S
    requests_a_second = at_once / wait_s
    assert requests_a_second <= max(worker.CLAIMS_A_SECOND, claiming / worker.LONGEST_TURN_S) * (1 + 1e-9)
