"""The programs of this engine: taken up on arrival, run as admission lets them, reported to their end.

What befalls a program is its own: it is reported as failed, its contexts are freed, and the others
go on. Only the backend's death ends them all, unreported: the process ends then, and the manager
learns from that.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from parrot_engine.backends.base import BackendDeadError, BackendError, UnsupportedError
from parrot_engine.programs.execution import Execution
from parrot_engine.programs.laps import Laps
from parrot_engine.programs.tools import Tools
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.fences import FencedError, Mark
from parrot_runtime.values.subjects import SessionSubjects

VERSION: Final = 1
STOP_AGAIN_S: Final = 1.0
LAST_WORDS_S: Final = 5.0
"""How long the bus may take for what interrupted programs have written."""

log = structlog.get_logger()

Key = tuple[str, str, int]


@dataclass(slots=True)
class _Running:
    """`telling`: it has failed, and what it streamed is on its way to the bus still."""

    task: asyncio.Task[engine_pb2.AttachRequest]
    deadline: asyncio.TimerHandle | None
    delta_subject: str
    mark: Mark | None
    stopped_by: Fault | None = None
    telling: asyncio.Task[None] | None = None


class Running(Protocol):
    """A program that has been taken up."""

    def __init__(
        self, tools: Tools, program: engine_pb2.RunProgram, arrived_ns: int, mark: Mark | None = None
    ) -> None: ...

    @property
    def usage(self) -> common_pb2.Usage:
        """What it used so far."""

    @property
    def laps(self) -> Laps:
        """What it did so far."""

    async def run(self) -> engine_pb2.AttemptDone:
        """Returns when it is done; see `Execution.run`."""


def key_of(ref: engine_pb2.AttemptRef) -> Key:
    """An attempt as something to look it up by."""
    return ref.session_id, ref.call_id, ref.attempt


class Programs:
    """Starts, cancels and drains programs. Use within one event loop."""

    def __init__(self, tools: Tools, execution: type[Running] = Execution) -> None:
        """`execution`: what a program is here, once it is taken up."""
        self._tools = tools
        self._execution = execution
        self._programs: dict[Key, _Running] = {}
        self._draining = False

    @property
    def running(self) -> int:
        """Programs that generate, or have the place to."""
        return self._tools.admission.running

    @property
    def waiting(self) -> int:
        """Programs that could run and have no place yet."""
        return self._tools.admission.waiting

    @property
    def paused(self) -> int:
        """Programs that wait for an input."""
        return len(self._programs) - self.running - self.waiting

    def attempts(self) -> list[engine_pb2.AttemptRef]:
        """Every attempt that has not ended."""
        return [_ref(key) for key in self._programs]

    def _report(self, event: engine_pb2.AttachRequest) -> None:
        self._tools.meters.count(event)
        self._tools.press.report(event)

    def start(self, program: engine_pb2.RunProgram) -> None:
        """Takes a program up; one that is here already goes on as it is."""
        key = key_of(program.ref)
        if key in self._programs:
            log.warning("program sent twice", **_names(program.ref))
            return
        if self._draining:
            fault = Fault(errors.INTERRUPTED, "the engine is being stopped and takes nothing new")
            self._report(_failed(program.ref, fault))
            return
        # It keeps the mark it started with: what it writes late is refused with the rest.
        mark = self._tools.press.marks.of(program.ref.session_id)
        outcome = self._outcome(program, time.time_ns(), mark)
        task = asyncio.create_task(outcome, name=f"program-{key[0]}/{key[1]}")
        subject = SessionSubjects(program.tenant, key[0]).delta
        self._programs[key] = _Running(task, self._deadline(key, program.deadline_unix_ms), subject, mark)
        task.add_done_callback(functools.partial(self._ended, key))

    def cancel(self, ref: engine_pb2.AttemptRef, reason: str) -> None:
        """Stops a program; it is reported as cancelled, also when it is not here (any more)."""
        log.info("program cancelled", reason=reason, **_names(ref))
        if key_of(ref) in self._programs:
            self._stop(key_of(ref), Fault(errors.CANCELLED, reason or "it was cancelled"))
        else:
            self._report(_cancelled(ref))

    def give_up(self, keys: Iterable[Key], why: str) -> None:
        """Stops programs whose outputs nobody takes any more; they are reported as lost."""
        for key in keys:
            self._tools.press.feeds.renew(key[0])
            self._stop(key, Fault(errors.ENGINE_LOST, f"engine {self._tools.engine_id} stopped it: {why}"))

    async def drain(self, grace_s: float) -> None:
        """Returns when every program has ended; those that take longer than `grace_s` are interrupted.

        What is sent from now on is refused. A bus that is away then keeps nobody: who is not told how a
        program ended hears that the engine is gone.
        """
        self._draining = True
        tasks = [running.task for running in self._programs.values()]
        if not tasks:
            return
        fault = Fault(errors.INTERRUPTED, f"the engine was stopped and waited {grace_s:g} s; submit it again")
        await asyncio.wait(tasks, timeout=grace_s)
        for key in list(self._programs):
            self._stop(key, fault)
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await asyncio.wait(tasks)
                while telling := [running.telling for running in self._programs.values() if running.telling]:
                    await asyncio.wait(telling)
        except TimeoutError:
            log.warning("stopped before the bus had everything", programs=len(self._programs))

    async def abandon(self) -> None:
        """Ends every program and reports none."""
        tasks = [running.task for running in self._programs.values()]
        for task in tasks:
            _cancel(task)
        await asyncio.gather(*tasks, return_exceptions=True)
        telling = [running.telling for running in self._programs.values() if running.telling]
        for last in telling:
            last.cancel()
        await asyncio.gather(*telling, return_exceptions=True)

    def _deadline(self, key: Key, deadline_unix_ms: int) -> asyncio.TimerHandle | None:
        if not deadline_unix_ms:
            return None
        fault = Fault(
            errors.DEADLINE_EXCEEDED, "its deadline passed on the engine; allow more time or ask for less"
        )
        left_s = max(0.0, deadline_unix_ms / 1000 - time.time())
        return asyncio.get_running_loop().call_later(left_s, self._stop, key, fault)

    def _stop(self, key: Key, fault: Fault) -> None:
        running = self._programs[key]
        running.stopped_by = running.stopped_by or fault
        _cancel(running.task)

    def _ended(self, key: Key, task: asyncio.Task[engine_pb2.AttachRequest]) -> None:
        running = self._programs[key]
        if running.deadline is not None:
            running.deadline.cancel()
        event = _end(_ref(key), task, running.stopped_by)
        if event is not None and event.HasField("failed"):
            running.telling = asyncio.create_task(self._tell(key, running, event), name=f"tell-{key}")
            return
        del self._programs[key]
        if event is not None:
            self._report(event)

    async def _tell(self, key: Key, running: _Running, event: engine_pb2.AttachRequest) -> None:
        """Reports a failure once all that was streamed is on the bus: the next attempt goes on behind it."""
        try:
            await self._tools.press.writer.settle(running.delta_subject, running.mark)
            self._report(event)
        finally:
            del self._programs[key]

    async def _outcome(
        self, program: engine_pb2.RunProgram, arrived_ns: int, mark: Mark | None
    ) -> engine_pb2.AttachRequest:
        execution: Running | None = None
        try:
            self._check(program)
            execution = self._execution(self._tools, program, arrived_ns, mark)
            return engine_pb2.AttachRequest(done=await execution.run())
        except BackendDeadError:
            raise
        except Exception as error:  # noqa: BLE001 - a bug ends its own program, is logged, and ends no other's
            event = _failed(program.ref, self._fault_of(error, program.ref, mark))
            if execution is not None:
                event.failed.usage.CopyFrom(execution.usage)
                execution.laps.broke_off()
                event.failed.laps.extend(execution.laps.message)
            return event

    def _fault_of(self, error: Exception, ref: engine_pb2.AttemptRef, mark: Mark | None) -> Fault:
        """Why a program failed, as it is told."""
        if isinstance(error, Fault):
            return error
        if isinstance(error, FencedError):
            if mark is not None:
                self._tools.press.marks.refuse(mark)
            return Fault(
                errors.ENGINE_LOST, f"engine {self._tools.engine_id} was given up while it ran the call"
            )
        if isinstance(error, UnsupportedError):
            # What was asked for is at fault, and will be at every engine like this one.
            return Fault(errors.INVALID_SAMPLING, str(error))
        if isinstance(error, BackendError):
            return Fault(errors.ENGINE_ERROR, f"the engine could not run it: {error}")
        log.error("program failed", exc_info=error, **_names(ref))
        return Fault(errors.ENGINE_ERROR, "an unexpected error; the engine's log has it")

    def _check(self, program: engine_pb2.RunProgram) -> None:
        served = self._tools.backend.info.model
        if program.version != VERSION:
            raise Fault(
                errors.ENGINE_ERROR,
                f"the program is of version {program.version}; this engine knows version {VERSION}",
            )
        if program.model not in ("", served):
            raise Fault(errors.UNKNOWN_MODEL, f"this engine serves {served}, not {program.model}")


def _cancel(task: asyncio.Task[engine_pb2.AttachRequest]) -> None:
    """Cancels a task, again and again: a library that waits may take a cancellation for its answer."""
    if not task.done():
        task.cancel()
        asyncio.get_running_loop().call_later(STOP_AGAIN_S, _cancel, task)


def _end(
    ref: engine_pb2.AttemptRef, task: asyncio.Task[engine_pb2.AttachRequest], stopped_by: Fault | None
) -> engine_pb2.AttachRequest | None:
    """What to report of a program whose task has ended; None when there is nobody to report it."""
    if task.cancelled():
        if stopped_by is None:
            return None
        return _cancelled(ref) if stopped_by.kind is errors.CANCELLED else _failed(ref, stopped_by)
    if (error := task.exception()) is not None:
        log.error("program lost with its backend", error=str(error), **_names(ref))
        return None
    return task.result()


def _ref(key: Key) -> engine_pb2.AttemptRef:
    session_id, call_id, attempt = key
    return engine_pb2.AttemptRef(session_id=session_id, call_id=call_id, attempt=attempt)


def _names(ref: engine_pb2.AttemptRef) -> dict[str, object]:
    return {"session_id": ref.session_id, "call_id": ref.call_id, "attempt": ref.attempt}


def _failed(ref: engine_pb2.AttemptRef, fault: Fault) -> engine_pb2.AttachRequest:
    failure = fault.to_failure()
    failure.session_id = ref.session_id
    failure.call_id = ref.call_id
    return engine_pb2.AttachRequest(failed=engine_pb2.AttemptFailed(ref=ref, failure=failure))


def _cancelled(ref: engine_pb2.AttemptRef) -> engine_pb2.AttachRequest:
    return engine_pb2.AttachRequest(cancelled=engine_pb2.AttemptCancelled(ref=ref))
