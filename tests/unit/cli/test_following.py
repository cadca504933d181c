"""Commands follow streams over broken connections, and run graphs whatever their calls are made of."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from parrot_cli import following, revival
from parrot_cli.failing import REFUSED, UNREACHABLE, CommandError
from parrot_cli.following import events
from parrot_cli.revival import DEATHS, HEALTHY_S, Deaths
from parrot_cli.running.graphs import run_graph


class Clock:
    """Stands for the module `time`; pauses take no time but on it."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        """Its time."""
        return self.now_s

    def sleep(self, seconds: float) -> None:
        """Lets time pass."""
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time, as the modules under test have it."""
    made = Clock()
    monkeypatch.setattr(following, "time", made)
    monkeypatch.setattr(revival, "time", made)
    return made


def told(kind: str, event_id: str = "", **data: Any) -> bytes:
    """An event as it is sent."""
    return f"id: {event_id}\nevent: {kind}\ndata: {json.dumps(data)}\n\n".encode()


AWAY = CommandError("away", UNREACHABLE)


class Server:
    """Stands for a server: connections that send so much and end, or fail; the last one for ever."""

    def __init__(self, *connections: list[bytes] | CommandError) -> None:
        self.session: dict[str, Any] = {"id": "s", "calls": [], "blocks": [], "variables": []}
        self.asked: list[str] = []
        self.posted: list[Any] = []
        self._connections = list(connections)

    @contextmanager
    def stream(self, path: str, last_event_id: str, silence_s: float) -> Iterator[Iterator[bytes]]:
        """The next connection."""
        self.asked.append(last_event_id)
        found = self._connections.pop(0) if len(self._connections) > 1 else self._connections[0]
        if isinstance(found, CommandError):
            raise found
        yield iter(found)

    def post(self, path: str, body: object = None) -> Any:
        """Takes what is sent."""
        self.posted.append(body)
        return {"id": "s"}

    def get(self, path: str) -> Any:
        """The session."""
        return self.session

    def delete(self, path: str) -> None:
        """Ends the session."""


@pytest.mark.parametrize(
    "connection", [[], [told("error", status=503, type="unavailable", title="t", detail="d", may_retry=True)]]
)
def test_connections_that_break_off_and_tell_nothing_are_given_up(
    clock: Clock, connection: list[bytes]
) -> None:
    with pytest.raises(CommandError) as given_up:
        list(events(Server(connection), "/events"))  # type: ignore[arg-type]
    assert given_up.value.code == UNREACHABLE
    assert clock.now_s < 60


BUSY = CommandError("busy", REFUSED, {"status": 429, "type": "too_many_requests"})


@pytest.mark.parametrize("busy", [BUSY, [told("error", status=429, type="t", title="t", detail="d")]])
def test_a_server_that_is_busy_is_asked_again(clock: Clock, busy: list[bytes] | CommandError) -> None:
    assert kinds(Server(busy, busy, [told("done", "1")])) == ["done"]


def kinds(server: Any) -> list[str]:
    """The kinds of a stream's events."""
    return [event.event for event in events(server, "/stream")]


def test_a_server_that_is_away_for_a_while_is_asked_again_from_there(clock: Clock) -> None:
    server = Server([told("delta", "1")], *20 * [AWAY], [told("delta", "2"), told("done", "3")])
    assert kinds(server) == ["delta", "delta", "done"]
    assert server.asked == ["", *21 * ["1"]]
    assert clock.now_s >= 20 * following.RECONNECT_S


def test_a_server_that_stays_away_is_given_up(clock: Clock) -> None:
    with pytest.raises(CommandError, match="away"):
        kinds(Server([told("delta", "1")], AWAY))
    assert following.GIVE_UP_S < clock.now_s < 2 * following.GIVE_UP_S


def test_a_silent_connection_that_breaks_leaves_all_of_the_patience(clock: Clock) -> None:
    class Silent(Server):
        """Its first connection beats for a while, and breaks."""

        @contextmanager
        def stream(self, path: str, last_event_id: str, silence_s: float) -> Iterator[Iterator[bytes]]:
            if not self.asked:
                clock.sleep(following.GIVE_UP_S - 1)
            with super().stream(path, last_event_id, silence_s) as chunks:
                yield chunks

    assert kinds(Silent([b": alive\n\n"], *20 * [AWAY], [told("done", "1")])) == ["done"]


def test_what_breaks_the_stream_is_waited_out_and_what_ends_the_variable_is_told(clock: Clock) -> None:
    passing = told("error", status=503, type="unavailable", detail="stopping")
    failed = told("error", status=422, state="failed", type="prompt_too_long")
    assert kinds(Server([told("delta", "1"), passing], [failed])) == ["delta", "error"]
    with pytest.raises(CommandError, match="gone") as caught:
        kinds(Server([told("error", status=410, type="expired_cursor", detail="gone")]))
    assert caught.value.code == REFUSED


def test_what_went_wrong_is_told_though_the_session_can_not_be_ended(tmp_path: Path) -> None:
    file = tmp_path / "call.json"
    file.write_text("{}")
    server: Any = Server([])
    server.get, server.delete = _raising("get"), _raising("delete")
    with pytest.raises(CommandError, match="get"):
        run_graph(server, file, [], quiet=True, as_json=False)


def _raising(what: str) -> Callable[[str], None]:
    def ask(path: str) -> None:
        raise CommandError(f"{what} {path}", UNREACHABLE)

    return ask


@pytest.mark.parametrize("member", ["prompt", "messages", "native"])
def test_a_call_alone_is_a_graph_and_takes_arguments(tmp_path: Path, member: str) -> None:
    call = {member: "x", "placeholders": []}
    file = tmp_path / "call.json"
    file.write_text(json.dumps(call))
    server: Any = Server([])
    assert run_graph(server, file, ["topic=sea"], quiet=True, as_json=False) == 0
    given = {"semantic_var_id": "topic", "name": "topic", "value": "sea"}
    assert server.posted[1] == {"calls": [call], "variables": [given]}


@pytest.mark.parametrize("body", [{"calls": []}, {"blocks": []}, {"variables": []}])
def test_a_batch_is_sent_as_it_is(tmp_path: Path, body: dict[str, Any]) -> None:
    file = tmp_path / "batch.json"
    file.write_text(json.dumps(body))
    server: Any = Server([])
    run_graph(server, file, [], quiet=True, as_json=False)
    assert server.posted[1] == body


@pytest.mark.parametrize("start_s", [0.1, 100.0])
def test_what_dies_again_and_again_is_given_up_however_long_it_takes_to_start(
    clock: Clock, start_s: float
) -> None:
    for ready in (True, False):
        deaths, told_so = Deaths(), []
        for _ in range(DEATHS):
            told_so.append(deaths.one_more())
            clock.sleep(start_s)
            deaths.reborn(ready=ready)
        assert told_so == [*(DEATHS - 1) * [False], True]


def test_a_death_after_a_stretch_of_health_is_the_first(clock: Clock) -> None:
    deaths = Deaths()
    for _ in range(3 * DEATHS):
        assert not deaths.one_more()
        deaths.reborn(ready=True)
        clock.sleep(HEALTHY_S)
