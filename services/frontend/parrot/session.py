"""Sessions: one run of an application, whose calls form a graph on the server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any, Self

from parrot import criteria as wishes
from parrot.background import background
from parrot.client import RETRY_S
from parrot.criteria import Criteria
from parrot.errors import SessionError
from parrot.info import SessionInfo
from parrot.outbox import Outbox
from parrot.session_work import SessionWork
from parrot.text import check_id
from parrot.variable import SemanticVariable
from parrot.watching import SessionEvent

Variable = SemanticVariable[Any]

_ambient: ContextVar[Session | None] = ContextVar("parrot_session", default=None)
_default: list[Session] = []


def ambient() -> Session | None:
    """The session whose `with` block this is in, else the process's default; None: there is none."""
    return _ambient.get() or (_default[-1] if _default else None)


def current(name: str) -> Session:
    """As `ambient`.

    Raises:
        SessionError: there is none.
    """
    session = ambient()
    if session is None:
        raise SessionError(
            f"{name} was called outside of any session; call it inside 'with P.Session():', or pass "
            "session=... (a new thread does not inherit the session of the one that started it), or make a "
            "session the process's default: 'P.Session().open().use()'"
        )
    return session


class Session(SessionWork):
    """One run of an application: `with P.Session() as session:`, or `async with`.

    Calls made inside join it. They are collected, and travel in one request when the first of their
    outputs is waited for. Leaving the block ends the session: what is unfinished then is cancelled,
    and outputs that were never asked for are never computed. With `keep`, all is sent and the server
    finishes it after the block was left without an error; it can be read then as before.

    Where a block does not fit, as in a notebook, `session = P.Session().open().use()` makes it the default
    of the whole process, and `session.close()` ends it. A session may be used from several threads and
    event loops; in threads, one that is not the default is passed to calls as `session=`.

    Args:
        url: the server; by default PARROT_URL, else http://127.0.0.1:8080.
        api_key: by default PARROT_API_KEY.
        label: for people; 200 characters at most.
        timeout: seconds after which the server ends the session; by default the server's own.
        keep: leave it running at the block's end.
        criteria: what is wanted of outputs whose reader says nothing else; by default latency. A
            `P.Deadline` counts from the opening.
        lazy: calls run only when somebody reads what they lead to.
        retry: seconds for which what fails in passing is asked again, and a server that is busy, or a quota
            that is used up, is waited for.

    Raises:
        ValueError: `url` is not an HTTP URL, `criteria` names none, or `retry` is out of range.
        InvalidText: `label` holds a lone surrogate.
    """

    def __init__(
        self,
        url: str | None = None,
        api_key: str | None = None,
        label: str | None = None,
        timeout: float | None = None,
        *,
        keep: bool = False,
        criteria: Criteria | None = None,
        lazy: bool = False,
        retry: float = RETRY_S,
    ) -> None:
        super().__init__(url, api_key, label or "", timeout, retry)
        wishes.to_wire(criteria)
        self.keep, self.lazy, self._criteria = keep, lazy, criteria
        self._outbox = Outbox(self, self._client)
        self._token: Token[Session | None] | None = None

    @property
    def url(self) -> str:
        """The server's URL."""
        return self._client.url

    @property
    def trace_id(self) -> str:
        """The trace of all its requests, 32 hex digits."""
        return self._trace.trace_id

    def open(self) -> Self:
        """Makes the session on the server; for where a `with` block does not fit. `close` ends it.

        Raises:
            ServerUnavailable: the server can't be reached.
            RequestRefused: it refused.
        """
        background().run(self._open())
        return self

    async def aopen(self) -> Self:
        """As `open`, awaited."""
        await background().arun(self._open())
        return self

    def use(self) -> Self:
        """Makes it the session of calls that are made outside of any `with` block, in every thread.

        Raises:
            SessionError: it is not open, or has ended.
        """
        self._check_open()
        if self not in _default:
            _default.append(self)
        return self

    def unuse(self) -> None:
        """Takes `use` back; the default is then the one before it. Does nothing where it is not used."""
        if self in _default:
            _default.remove(self)

    def close(self) -> None:
        """Ends the session on the server; what is unfinished is cancelled. Does nothing twice.

        Raises:
            ServerUnavailable: the server can't be reached; it ends the session at its deadline.
        """
        self.unuse()
        background().run(self._close())

    async def aclose(self) -> None:
        """As `close`, awaited."""
        self.unuse()
        await background().arun(self._close())

    def cancel(self, *what: Variable | str, subtree: bool = False) -> None:
        """Cancels calls and blocks, and all that depends on them; without arguments, the whole session.

        Args:
            what: outputs of them, or their ids on the server (see `info`). What has ended stays as it is.
            subtree: cancel too what only these need, up to the beginning.

        Raises:
            RequestRefused: there is no such call.
            ServerUnavailable: the server can't be reached.
        """
        background().run(self._cancel(what, subtree=subtree))

    async def acancel(self, *what: Variable | str, subtree: bool = False) -> None:
        """As `cancel`, awaited."""
        await background().arun(self._cancel(what, subtree=subtree))

    def flush(self) -> None:
        """Sends the calls collected so far, without waiting for a result.

        Raises:
            RequestRefused: the server refused them; none of them was accepted.
            ServerUnavailable: the server can't be reached.
        """
        background().run(self._outbox.flush())

    async def aflush(self) -> None:
        """As `flush`, awaited."""
        await background().arun(self._outbox.flush())

    def info(self) -> SessionInfo:
        """The session's graph as the server has it: states, tokens used, times.

        Raises:
            ServerUnavailable: the server can't be reached.
        """
        return background().run(self._info())

    async def ainfo(self) -> SessionInfo:
        """As `info`, awaited."""
        return await background().arun(self._info())

    def events(self, timeout: float | None = None) -> Iterator[SessionEvent]:
        """What happens in the session, up to its end: states, text as it is written, errors.

        How it is now comes first, then an event of the kind "snapshot", then each change. A connection that
        breaks is made again, without a gap or a repeat.

        Args:
            timeout: seconds for the whole of it; by default as long as the session lives.

        Raises:
            WaitTimeout: the session did not end in time.
            ServerUnavailable: the server can't be reached.
        """
        yield from background().iterate(self._events(timeout))

    async def aevents(self, timeout: float | None = None) -> AsyncIterator[SessionEvent]:
        """As `events`, for `async for`."""
        async with aclosing(background().aiterate(self._events(timeout))) as events:
            async for event in events:
                yield event

    def variable(self, id: str, name: str = "") -> SemanticVariable[str]:  # noqa: A002 - what it is
        """A variable that the session has on the server, by its id: of another process, or of an
        instance of a body, such as "b-3-2-summary".

        Raises:
            ValueError: `id` is no id.
        """
        found: SemanticVariable[str] = SemanticVariable(name or id)
        found.id = check_id(id, "the id of a variable")
        found._session, found._produced, found._state = self, True, "pending"
        self._outbox.know(found)
        return found

    def __enter__(self) -> Self:
        background().run(self._opened())
        self._token = _ambient.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._leave()
        background().run(self._end(failed=error is not None))

    async def __aenter__(self) -> Self:
        await background().arun(self._opened())
        self._token = _ambient.set(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._leave()
        await background().arun(self._end(failed=error is not None))

    def _leave(self) -> None:
        self.unuse()
        if self._token is not None:
            _ambient.reset(self._token)
            self._token = None


def attach(session_id: str, url: str | None = None, api_key: str | None = None) -> Session:
    """A session that is there already, such as one that another process left with `keep`.

    It can be added to and read (`session.variable(id)`). Leaving its `with` block does not end it, with
    an error either; `close` does.

    Raises:
        ValueError: `url` is not an HTTP URL, or `session_id` no id.
    """
    session = Session(url, api_key, keep=True)
    session._id = check_id(session_id, "the id of a session")
    session._theirs = True
    return session
