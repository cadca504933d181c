"""Runs native calls: takes one when its inputs are there, keeps it while it runs, and tells its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from parrot.errors import ParrotError, RequestRefused, ServerUnavailable

if TYPE_CHECKING:
    from parrot.session import Session

AT_ONCE: Final = 64
"""Native calls that run at once in a process; others wait for a thread."""
CLAIMS_AT_ONCE: Final = 64
"""Claims that hold a connection at once; calls whose inputs are awaited take turns."""
TURN_S: Final = 10.0
LONGEST_TURN_S: Final = 40.0
"""After so long each of them has had its turn, well before the server gives its call up: that is 60 s after
its inputs are there."""
CLAIMS_A_SECOND: Final = 20
"""When more wait than can ask in `TURN_S` at this rate, the turn is longer: requests are counted."""
RENEWALS: Final = 3
"""In the time of a lease."""
PAUSE_S: Final = 1.0
ERROR_CHARS: Final = 500

_WORKER: Final = f"native-{secrets.token_hex(8)}"
_TOO_MANY: Final = 429
_CONFLICT: Final = 409
_SERVER_ERRORS: Final = 500

_log = logging.getLogger("parrot")
Answer = dict[str, Any]


class _Places:
    """Of the running loop: the threads and the connections there are for native calls.

    Attributes:
        claiming: how many calls wait for their inputs.
    """

    def __init__(self) -> None:
        self.threads = asyncio.Semaphore(AT_ONCE)
        self.claims = asyncio.Semaphore(CLAIMS_AT_ONCE)
        self.claiming = 0


_places: WeakKeyDictionary[asyncio.AbstractEventLoop, _Places] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be run: from the texts of a call's inputs to those of its outputs.

    Attributes:
        timeout_s: how long it may run; None: as long as the session lives.
    """

    name: str
    run: Callable[[Mapping[str, str]], dict[str, str]]
    timeout_s: float | None


async def serve(session: Session, call_id: str, work: Work) -> None:
    """Runs a native call of a session. Returns when its end was told, or nobody wants it any more."""
    path = f"/v1/sessions/{session.id}/calls/{call_id}"
    try:
        claim = await _claim(session, path)
        end = await _kept(session, path, claim, _outcome(work, claim["inputs"]))
        await _tell(session, path, work, end)
    except RequestRefused as refusal:
        # It has ended meanwhile, or its session has: what it made is not wanted.
        _log.debug("the native call %s of %s is given up: %s", call_id, work.name, refusal)
    except ParrotError as error:
        _log.warning("the native call %s of %s can't be served: %s", call_id, work.name, error)


async def _claim(session: Session, path: str) -> Answer:
    """The call, once its inputs are there.

    Raises:
        RequestRefused: it has ended, or is another's.
    """
    places = _here()
    places.claiming += 1
    try:
        while True:
            async with places.claims:
                wait_s = _wait_s(places.claiming)
                claim = await _ask(session, f"{path}/claim", {"worker": _WORKER}, {"wait_s": wait_s}, wait_s)
            if claim["state"] == "claimed":
                return claim
    finally:
        places.claiming -= 1


def _wait_s(claiming: int) -> float:
    """How long a claim may hold its connection, when so many calls wait for their inputs."""
    turn_s = min(max(TURN_S, claiming / CLAIMS_A_SECOND), LONGEST_TURN_S)
    return min(TURN_S, turn_s * CLAIMS_AT_ONCE / claiming)


async def _kept(session: Session, path: str, claim: Answer, running: Coroutine[Any, Any, Answer]) -> Answer:
    """What comes of the call, its claim being renewed meanwhile.

    Raises:
        RequestRefused: the claim was lost.
    """
    async with asyncio.TaskGroup() as group:
        run = group.create_task(running)
        renewing = group.create_task(_renew(session, path, float(claim["lease_s"]) / RENEWALS))
        await asyncio.wait({run, renewing}, return_when=asyncio.FIRST_COMPLETED)
        ended = run.done()
        renewing.cancel()
        run.cancel()
    if not ended:
        raise renewing.result()
    return run.result()


async def _renew(session: Session, path: str, every_s: float) -> RequestRefused:
    """Renews a claim again and again; the refusal that ends it."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await _ask(session, f"{path}/renew", {"worker": _WORKER})
        except RequestRefused as refusal:
            return refusal


async def _tell(session: Session, path: str, work: Work, end: Answer) -> None:
    try:
        await _ask(session, f"{path}/result", {"worker": _WORKER, **end})
    except RequestRefused as refusal:
        if "outputs" not in end or refusal.status == _CONFLICT:
            raise
        # Such as an output that is too large: the call fails with that.
        failed = _error(f"what {work.name} made was refused: {refusal}")
        await _ask(session, f"{path}/result", {"worker": _WORKER, **failed})


async def _outcome(work: Work, inputs: Mapping[str, str]) -> Answer:
    """The outputs, or the error."""
    try:
        async with _here().threads, asyncio.timeout(work.timeout_s):
            return await _in_thread(work, inputs)
    except TimeoutError:
        why = f"{work.name} ran for more than {work.timeout_s:g} s, its timeout"
        _log.warning("the native function %s", why)
        return _error(why)


async def _in_thread(work: Work, inputs: Mapping[str, str]) -> Answer:
    """Runs it in a thread, which does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()

    def settle(end: Answer) -> None:
        if not future.done():
            future.set_result(end)

    def beside() -> None:
        end = _end_of(work, inputs)
        with contextlib.suppress(RuntimeError):  # The loop is gone: nobody waits any more.
            loop.call_soon_threadsafe(settle, end)

    threading.Thread(target=beside, name=f"parrot-native-{work.name}", daemon=True).start()
    return await future


def _end_of(work: Work, inputs: Mapping[str, str]) -> Answer:
    try:
        return {"outputs": work.run(inputs)}
    except BaseException as error:  # noqa: BLE001 - whatever the application's code raises fails its call
        _log.warning("the native function %s failed", work.name, exc_info=error)
        return _error(f"{work.name} raised {type(error).__name__}: {error}")


def _error(message: str) -> Answer:
    # Half a character of what was raised is no text.
    return {"error": {"message": message[:ERROR_CHARS].encode(errors="replace").decode()}}


async def _ask(
    session: Session,
    path: str,
    body: Answer,
    params: dict[str, Any] | None = None,
    hold_s: float = 0.0,
) -> Answer:
    """The server's answer, waited for until the session ends.

    Raises:
        RequestRefused: it says no.
    """
    while True:
        try:
            answer: Answer | None = await session._client.request(
                "POST", path, body=body, params=params, hold_s=hold_s
            )
        except ServerUnavailable:
            await asyncio.sleep(PAUSE_S)
        except RequestRefused as refusal:
            if refusal.status != _TOO_MANY and refusal.status < _SERVER_ERRORS:
                raise
            await asyncio.sleep(PAUSE_S)
        else:
            return dict(answer or {})


def _here() -> _Places:
    return _places.setdefault(asyncio.get_running_loop(), _Places())
