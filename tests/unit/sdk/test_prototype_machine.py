"""The prototype's machine: what joins its session and when it is sent, and what errors leave behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Self

import pytest

import parrot
from parrot import P
from parrot.compat import environment
from parrot.errors import ServerUnavailable
from parrot.session import ambient

pytestmark = pytest.mark.anyio


class Recorder(parrot.Session):
    """Stands for a session on a server."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self.calls: list[Any] = []
        self.sent = 0
        self.closed = 0
        self.unreachable = False

    def open(self) -> Self:
        self._id = "s00-0000000000000000"
        return self

    def close(self) -> None:
        self.closed += 1
        if self.unreachable:
            raise ServerUnavailable("it went away")

    def _add(self, node: Any) -> None:
        self.calls.append(node)

    def _flush_soon(self) -> None:
        self.sent += 1

    async def aflush(self) -> None:
        self.sent += 1


class Machine(P.VirtualMachine):
    """A machine whose sessions are recorders, all of which it keeps."""

    def __init__(self, *, eager: bool = False) -> None:
        self.sessions: list[Recorder] = []
        url = "http://127.0.0.1:1"
        super().__init__(os_http_addr=url) if eager else super().__init__(url)
        self.sessions.clear()

    def _make_session(self) -> Recorder:
        self.sessions.append(Recorder())
        return self.sessions[-1]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Whatever a test does, no machine and no session stays the process's."""
    yield
    assert environment.machine() is None
    assert ambient() is None


@P.semantic_function()
def say(a: P.Input, b: P.Output) -> None:
    """Say {{a}}: {{b}}"""


@P.semantic_function(output_criteria="latency")
def say_now(a: P.Input, b: P.Output) -> None:
    """Say {{a}}: {{b}}"""


@P.native_function()
def note(a: P.Input, b: P.Output) -> None:
    """Never run here."""


async def test_programs_of_both_kinds_run_with_their_arguments_even_beside_a_running_loop() -> None:
    machine, seen = Machine(), list[tuple[Any, ...]]()
    mark: ContextVar[str] = ContextVar("mark", default="")
    mark.set("the caller's")

    def plain(*args: int) -> None:
        say("x")
        seen.append(("plain", *args))

    async def awaiting(*args: int) -> None:
        await asyncio.sleep(0)
        await say.ainvoke("y")
        seen.append(("awaiting", *args, mark.get()))

    assert machine.run(plain, args=[1, 2]) == machine.stat_run_time > 0
    machine.run(awaiting, timeit=True, args=[3])
    await asyncio.to_thread(machine.run, awaiting, args=(4,))
    assert seen == [
        ("plain", 1, 2),
        ("awaiting", 3, "the caller's"),
        ("awaiting", 4, "the caller's"),
    ]
    assert [(len(s.calls), s.closed) for s in machine.sessions] == 3 * [(1, 1)]
    assert not machine.session_registered


@pytest.mark.parametrize("beside", [False, True])
async def test_what_a_program_raises_is_raised_and_its_session_is_ended(beside: bool) -> None:
    machine = Machine()

    def plain() -> None:
        raise KeyError("mine")

    async def awaiting() -> None:
        raise KeyError("mine")

    async def directly(work: Any, *arguments: Any) -> None:
        work(*arguments)

    run: Any = directly if beside else asyncio.to_thread
    for program in (plain, awaiting):
        with pytest.raises(KeyError, match="mine"):
            await run(machine.run, program)
    assert [session.closed for session in machine.sessions] == [1, 1]


def test_a_server_that_went_away_does_not_hide_why_a_program_failed(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()

    def program() -> None:
        machine.sessions[-1].unreachable = True
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        machine.run(program)
    assert "was not closed: it went away" in caplog.text

    def well() -> None:
        machine.sessions[-1].unreachable = True

    with pytest.raises(ServerUnavailable):
        machine.run(well)


def test_calls_of_every_thread_join_the_machine() -> None:
    machine = Machine()
    with machine.running_scope():
        threads = [threading.Thread(target=function, args=("x",)) for function in (say, note)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(call.name for call in machine.sessions[0].calls) == ["note", "say"]


def test_nested_scopes_share_a_session_and_a_machine_within_another_has_its_own() -> None:
    outer, inner = Machine(), Machine()
    outer.set_global_env()
    with outer.running_scope():
        say("outer")
        inner.run(lambda: say("inner"))
        assert environment.machine() is outer
    say("outer too")
    assert outer.sessions[0].closed == 0
    outer.unset_global_env()
    outer.unset_global_env()  # Once too often does nothing.
    assert [[call.inputs["a"] for call in m.sessions[0].calls] for m in (outer, inner)] == [
        ["outer", "outer too"],
        ["inner"],
    ]
    assert len(outer.sessions) == len(inner.sessions) == outer.sessions[0].closed == 1
    with pytest.raises(parrot.SessionError, match="no program runs"):
        _ = outer.runtime_info


def test_calls_are_sent_with_the_first_wait_or_at_once_where_the_program_expects_it() -> None:
    lazy, eager = Machine(), Machine(eager=True)
    with lazy.running_scope():
        say("x")
        note("x")
        assert lazy.sessions[0].sent == 0
        say_now("x")
        assert lazy.sessions[0].sent == 1
        asyncio.run(say.ainvoke("x"))
        assert lazy.sessions[0].sent == 1
    with eager.running_scope():
        say("x")
        note("x")
        assert eager.sessions[0].sent == 2
        eager.set_batch()
        say("x")
        assert eager.sessions[0].sent == 2
        asyncio.run(eager.submit_batch())
        assert eager.sessions[0].sent == 3
        asyncio.run(say.ainvoke("x"))
        assert eager.sessions[0].sent == 5


def test_a_batch_begins_and_ends_once_and_with_its_program() -> None:
    machine = Machine(eager=True)
    with machine.running_scope():
        with pytest.raises(parrot.SessionError, match="not set"):
            asyncio.run(machine.submit_batch())
        machine.set_batch(latency=0.1)
        with pytest.raises(parrot.SessionError, match="already set"):
            machine.set_batch()
    assert machine.sends_at_once


def test_profiling_runs_the_program_with_its_arguments_and_takes_the_mean() -> None:
    machine, seen = Machine(), list[int]()
    mean = machine.profile(seen.append, warmups=2, trials=3, args=[7])
    assert seen == 5 * [7]
    assert mean > 0
    with pytest.raises(ValueError, match="trials"):
        machine.profile(seen.append, trials=0, args=[7])
