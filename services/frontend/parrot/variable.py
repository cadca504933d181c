"""Semantic variables: texts that are known, are set later, or are being generated."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, Literal, cast

from parrot.background import background
from parrot.criteria import Criteria, to_query
from parrot.errors import ParrotError, SessionError
from parrot.text import check_text
from parrot.typed import TEXT, OutputType

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from parrot.bodies import Body
    from parrot.conditions import Condition
    from parrot.session import Session

    T = TypeVar("T", default=str)
else:
    from typing import TypeVar

    T = TypeVar("T")

State = Literal["new", "pending", "ready", "failed", "cancelled"]


class SemanticVariable(Generic[T]):
    """A text with a name: an output of a call, or an input whose text is given by `set`.

    An output of a type (`P.Output[T]`) is a `SemanticVariable[T]`: `get` returns a value of the type, while
    calls that read it get its text. As an annotation of a parameter it stands for an input or an output,
    whichever the template says. Use it from any thread, with or without a running event loop.

    Attributes:
        id: its id on the server, unique in its session.
        name: for people; the placeholder's name unless it was given one.
    """

    def __init__(self, name: str | None = None, content: str | None = None) -> None:
        self.id = f"v-{secrets.token_hex(8)}"
        self.name = check_text(name or "", "the name of a variable")
        self._session: Session | None = None
        self._produced = False
        self._state: State = "new"
        self._text: str | None = None
        self._error: ParrotError | None = None
        self._type: OutputType = TEXT
        self._body: Body | None = None
        self._under: tuple[Condition, ...] = ()
        self._producer_id = ""
        if content is not None:
            self.set(content)

    def __repr__(self) -> str:
        return f"<SemanticVariable {self.name or '(no name)'} {self.id} {self._state}>"

    @property
    def state(self) -> State:
        """What this process knows of it, without asking: "new" until its call was sent."""
        return self._state

    @property
    def content(self) -> str | None:
        """Its text, where this process has it; None otherwise, without asking."""
        return self._text

    def set(self, text: str) -> None:
        """Gives the variable its text, once. It travels with the calls that need it.

        Raises:
            SessionError: it has a text already, or a call makes it.
            InvalidText: `text` holds a lone surrogate.
        """
        if self._produced:
            raise SessionError(f"{self!r} is the output of a call; it can't be set")
        if self._text is not None:
            raise SessionError(f"{self!r} is set already; a variable is set once")
        self._resolve(check_text(text, f"the text of {self.name or self.id}"))

    def get(
        self,
        criteria: Criteria | float | None = None,
        timeout: float | None = None,
        *,
        perf: Criteria | None = None,
    ) -> T:
        """The text, or the value of its type, waited for; asked of the server once.

        Args:
            criteria: what is wanted of it, and so of all it depends on: P.LATENCY, P.THROUGHPUT, P.TTFT,
                `P.Deadline(seconds)`, or a name such as "throughput"; by default, what its session says. A
                stricter one than before hastens what has not run. (A number is taken for `timeout`.)
            timeout: seconds to wait; by default as long as the session lives.
            perf: another name of `criteria`.

        Raises:
            CallFailed: the call that makes it failed, or one it depends on.
            Cancelled: its call or its session was cancelled. Skipped: a condition left it out.
            InvalidOutput: its text is not of its type; it has the text.
            WaitTimeout: it did not come in time.
            RequestRefused: the server refused the calls that had to be sent first.
            ServerUnavailable: the server can't be reached.
            SessionError: no call makes it and nobody set it, or its session has ended.
        """
        wanted, timeout = _wanted(criteria, timeout, perf)
        if self._text is None:
            background().run(self._bound()._wait(self, timeout, wanted))
        return self._value()

    async def aget(
        self,
        criteria: Criteria | float | None = None,
        timeout: float | None = None,
        *,
        perf: Criteria | None = None,
    ) -> T:
        """As `get`, awaited."""
        wanted, timeout = _wanted(criteria, timeout, perf)
        if self._text is None:
            await background().arun(self._bound()._wait(self, timeout, wanted))
        return self._value()

    def stream(
        self,
        criteria: Criteria | float | None = None,
        timeout: float | None = None,
        *,
        perf: Criteria | None = None,
    ) -> Iterator[str]:
        """The text in pieces, as they are generated. Joined, they are the whole text.

        A connection that breaks is made again, without a gap or a repeat.

        Args:
            criteria: as in `get`.
            timeout: seconds for the whole of it; by default as long as the session lives.
            perf: another name of `criteria`.

        Raises:
            As `get`, but for InvalidOutput. What was yielded before stays true.
        """
        wanted, timeout = _wanted(criteria, timeout, perf)
        if self._text is not None:
            yield self._text
            return
        yield from background().iterate(self._bound()._stream(self, timeout, wanted))

    async def astream(
        self,
        criteria: Criteria | float | None = None,
        timeout: float | None = None,
        *,
        perf: Criteria | None = None,
    ) -> AsyncIterator[str]:
        """As `stream`, for `async for`."""
        wanted, timeout = _wanted(criteria, timeout, perf)
        if self._text is not None:
            yield self._text
            return
        async with aclosing(background().aiterate(self._bound()._stream(self, timeout, wanted))) as pieces:
            async for piece in pieces:
                yield piece

    def cancel(self, *, subtree: bool = False) -> None:
        """Cancels the call that makes it, and all that depends on that; does nothing when it has ended.

        Args:
            subtree: cancel too what only this needs, up to the beginning.

        Raises:
            SessionError: no call makes it, or its session has ended.
            ServerUnavailable: the server can't be reached.
        """
        self._bound().cancel(self, subtree=subtree)

    async def acancel(self, *, subtree: bool = False) -> None:
        """As `cancel`, awaited."""
        await self._bound().acancel(self, subtree=subtree)

    def _value(self) -> T:
        return cast(T, self._type.read(self._text or "", self.name))

    def _bound(self) -> Session:
        if self._body is not None:
            raise SessionError(
                f"{self!r} differs from instance to instance of the body of {self._body.owner}, and has no "
                f"value here; use what {self._body.owner} returns"
            )
        if self._session is None:
            raise SessionError(f"{self!r} has no text, and no call makes it; set() it, or pass it to a call")
        return self._session

    def _resolve(self, text: str) -> None:
        self._text = text
        self._state = "ready"

    def _fail(self, error: ParrotError, state: State = "failed") -> None:
        self._error = error
        self._state = state


def variable(name: str | None = None, content: str | None = None) -> SemanticVariable[str]:
    """A new variable: with `content`, a text to pass to calls; without, one to `set` later, or to pass
    as the output of a call.

    Raises:
        InvalidText: `name` or `content` holds a lone surrogate.
    """
    return SemanticVariable(name, content)


def _wanted(
    criteria: Criteria | float | None, timeout: float | None, perf: Criteria | None
) -> tuple[dict[str, Any], float | None]:
    if criteria is not None and perf is not None:
        raise TypeError("perf is another name of criteria; give one of them")
    if isinstance(criteria, (int, float)):
        if timeout is not None:
            raise TypeError(f"criteria is {criteria!r}, and timeout is given too")
        return to_query(perf), criteria
    return to_query(criteria if criteria is not None else perf), timeout
