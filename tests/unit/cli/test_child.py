"""A component is a process in a group of its own that dies with its parent, and leaves a log."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.support.up import gone
from tests.support.waiting import until

from parrot_cli import watchdog
from parrot_cli.child import Child, Spec, describe_exit, tethered

pytestmark = pytest.mark.anyio


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code]


async def test_logs_what_it_prints_and_tells_its_exit(tmp_path: Path) -> None:
    code = "import sys; print('out', flush=True); print('err', file=sys.stderr); sys.exit(3)"
    child = await Child.start(Spec("engine e-1", python(code)), tmp_path)
    assert await child.ended == 3
    assert child.log == tmp_path / "engine-e-1.log"
    assert child.tail() == ["out", "err"]


async def test_the_tail_is_of_this_run_and_has_the_last_lines(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("of an earlier run\n")
    child = await Child.start(Spec("x", python("for i in range(30): print(i)")), tmp_path)
    await child.ended
    assert child.tail() == [str(i) for i in range(10, 30)]
    assert "of an earlier run" not in child.tail(1000)


async def test_the_last_event_is_the_last_structured_line(tmp_path: Path) -> None:
    code = """print('{"event": "loading the model", "level": "info"}'); print('noise'); print('[1]')"""
    child = await Child.start(Spec("x", python(code)), tmp_path)
    await child.ended
    assert child.last_event() == "loading the model"


async def test_stops_by_its_own_signal(tmp_path: Path) -> None:
    code = "import signal; print('up', flush=True); signal.sigwait({2}); print('stopped')"
    masked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {2}); " + code
    child = await Child.start(Spec("x", python(masked), stop_signal=signal.SIGINT), tmp_path)
    until(lambda: child.tail() == ["up"])
    assert await child.stop()
    assert child.tail() == ["up", "stopped"]


async def test_is_killed_with_its_children_when_it_does_not_stop(tmp_path: Path) -> None:
    code = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(os.fork(), flush=True)
while True: signal.pause()
"""
    child = await Child.start(Spec("x", python(code), stop_within_s=0.1), tmp_path)
    until(lambda: len(child.tail()) == 2)
    grandchild = psutil.Process(max(int(line) for line in child.tail()))
    assert not await child.stop()
    until(lambda: gone(grandchild))


async def test_a_program_that_is_not_there_says_so(tmp_path: Path) -> None:
    child = await Child.start(Spec("x", ["/no/such/program"]), tmp_path)
    assert await child.ended == 127
    assert "/no/such/program can't be run" in child.tail()[0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_gets_its_signal_when_its_parent_is_killed() -> None:
    waits = "import signal; print('up', flush=True); signal.sigwait({10}); print('told', flush=True)"
    masked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, {10}); " + waits
    parent = f"""
import subprocess, signal
from parrot_cli.child import tethered
subprocess.Popen(tethered({python(masked)!r}, signal.SIGUSR1))
signal.pause()
"""
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.kill()
        assert process.stdout.readline() == "told\n"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
def test_does_not_start_when_its_parent_is_gone_already() -> None:
    command = tethered(python("print('started')"), signal.SIGTERM)
    nobody = next(pid for pid in range(4_000_000, 4_100_000) if not psutil.pid_exists(pid))
    command[command.index(str(os.getpid()))] = str(nobody)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become someone else")
def test_becomes_another_user() -> None:
    command = tethered(["/bin/sh", "-c", "id -u; id -G; pwd"], signal.SIGTERM, "nobody")
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    account = pwd.getpwnam("nobody")
    assert done.stdout.split() == [str(account.pw_uid), str(account.pw_gid), "/"]


def test_exits_are_told_in_words() -> None:
    assert describe_exit(3) == "exited with code 3"
    assert describe_exit(-9) == "was killed by SIGKILL"


def test_the_watchdog_kills_what_a_leader_left_behind_and_spares_what_is_done() -> None:
    leaves = "import os, signal; print(os.fork(), flush=True); os.getpid() == os.getpgrp() or signal.pause()"
    with subprocess.Popen(python(leaves), stdout=subprocess.PIPE, text=True, process_group=0) as leader:
        assert leader.stdout is not None
        left = psutil.Process(max(int(leader.stdout.readline()) for _ in range(2)))
        leader.wait()
        assert not gone(left)
        with subprocess.Popen(python("input()"), stdin=subprocess.PIPE, process_group=0) as spared:
            told = f"+{leader.pid}\n+{spared.pid}\n-{spared.pid}\n"
            command = [sys.executable, "-I", "-S", watchdog.__file__]
            subprocess.run(command, input=told, text=True, check=True, timeout=10)
            assert gone(left)
            assert spared.poll() is None
            spared.kill()
