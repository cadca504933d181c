"""Semantic variables: texts that are known, are set later, or are being generated."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Literal

from parrot.background import background
from parrot.errors import InvalidText, ParrotError, SessionError

if TYPE_CHECKING:
    from parrot.session import Session

State = Literal["new", "pending", "ready", "failed", "cancelled"]


class SemanticVariable:
    """A text with a name: an output of a call, or an input whose text is given by `set`.

    As an annotation of a parameter it stands for an input or an output, whichever the template says.
    Use it from any thread, with or without a running event loop.

    Attributes:
        id: its id on the server, unique.
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
        if content is not None:
            self.set(content)

    def __repr__(self) -> str:
        return f"<SemanticVariable {self.name or '(no name)'} {self.id} {self._state}>"

    @property
    def state(self) -> State:
        """What this process knows of it, without asking: "new" until its call was sent."""
        return self._state

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

    def get(self, timeout: float | None = None) -> str:
        """The text, waited for; asked of the server once.

        Args:
            timeout: seconds to wait; by default as long as the session lives.

        Raises:
            CallFailed: the call that makes it failed, or one it depends on.
            Cancelled: its call or its session was cancelled.
            WaitTimeout: it did not come in time.
            RequestRefused: the server refused the calls that had to be sent first.
            ServerUnavailable: the server can't be reached.
            SessionError: no call makes it and nobody set it, or its session has ended.
        """
        if self._text is not None:
            return self._text
        return background().run(self._bound()._wait(self, timeout))

    async def aget(self, timeout: float | None = None) -> str:
        """As `get`, awaited."""
        if self._text is not None:
            return self._text
        return await background().arun(self._bound()._wait(self, timeout))

    def stream(self, timeout: float | None = None) -> Iterator[str]:
        """The text in pieces, as they are generated. Joined, they are what `get` returns.

        A connection that breaks is made again, without a gap or a repeat.

        Args:
            timeout: seconds for the whole of it; by default as long as the session lives.

        Raises:
            As `get`. What was yielded before stays true.
        """
        if self._text is not None:
            yield self._text
            return
        runner = background()
        pieces = self._bound()._stream(self, timeout)
        try:
            while (piece := runner.run(_next(pieces))) is not None:
                yield piece
        finally:
            runner.run(_close(pieces))

    async def astream(self, timeout: float | None = None) -> AsyncIterator[str]:
        """As `stream`, for `async for`."""
        if self._text is not None:
            yield self._text
            return
        runner = background()
        pieces = self._bound()._stream(self, timeout)
        try:
            while (piece := await runner.arun(_next(pieces))) is not None:
                yield piece
        finally:
            await runner.arun(_close(pieces))

    def _bound(self) -> Session:
        if self._session is None:
            raise SessionError(f"{self!r} has no text, and no call makes it; set() it, or pass it to a call")
        return self._session

    def _resolve(self, text: str) -> None:
        self._text = text
        self._state = "ready"

    def _fail(self, error: ParrotError, state: State = "failed") -> None:
        self._error = error
        self._state = state


def variable(name: str | None = None, content: str | None = None) -> SemanticVariable:
    """A new variable: with `content`, a text to pass to calls; without, one to `set` later, or to pass
    as the output of a call.

    Raises:
        InvalidText: `name` or `content` holds a lone surrogate.
    """
    return SemanticVariable(name, content)


def check_text(text: str, what: str) -> str:
    """`text` itself, when every character of it is one.

    Raises:
        InvalidText: it holds a lone surrogate.
        TypeError: it is not a str.
    """
    if not isinstance(text, str):
        raise TypeError(f"{what} is a str, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidText(
            f"{what} holds a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}, "
            "which is half a character; give the pair, or leave it out",
            offset=error.start,
        ) from None
    return text


async def _next(pieces: AsyncIterator[str]) -> str | None:
    return await anext(pieces, None)


async def _close(pieces: AsyncIterator[str]) -> None:
    close = getattr(pieces, "aclose", None)
    if close is not None:
        await close()
