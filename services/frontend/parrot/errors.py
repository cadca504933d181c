"""What the SDK raises. Everything it raises on purpose is a `ParrotError`."""

from __future__ import annotations


class ParrotError(Exception):
    """The root of the SDK's errors."""


class TemplateError(ParrotError, ValueError):
    """A prompt template is not well formed; found when the function is defined.

    Attributes:
        line: where the hole opens, from 1; 0 when there is no place to point at.
        column: the same, in characters from 1.
        name: the hole's name as written; empty when it has none.
    """

    def __init__(self, message: str, *, line: int = 0, column: int = 0, name: str = "") -> None:
        super().__init__(message)
        self.line = line
        self.column = column
        self.name = name


class PlaceholderError(TemplateError):
    """The holes of a template and the names declared for it do not agree."""


class InvalidText(ParrotError, ValueError):
    """A text holds a lone surrogate, which is half a character and has no UTF-8.

    Attributes:
        offset: the character it is at, from 0.
    """

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class SessionError(ParrotError, RuntimeError):
    """A session, call or variable was used in a way its state doesn't allow."""


class ServerUnavailable(ParrotError, ConnectionError):
    """The server can't be reached, or stopped answering, and trying again within reason did not help.

    Attributes:
        sent: whether what was asked may have reached it all the same.
        silent: it said nothing for as long as was waited, rather than that the connection broke.
    """

    def __init__(self, message: str, *, sent: bool = True, silent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.silent = silent


class RequestRefused(ParrotError):
    """The server refused a request; nothing of it was done.

    Attributes:
        type: the stable slug of the problem, such as "too_large".
        title: what that type means.
        detail: what happened, and how to mend it.
        field: the field of the request it is about, such as "calls[2].prompt"; may be empty.
        status: the HTTP status.
        may_retry: the same request may succeed later.
        retry_after_s: after so many seconds, as far as the server can tell; None: it doesn't say.
    """

    def __init__(
        self,
        detail: str,
        *,
        type: str,  # noqa: A002 - RFC 9457's own name for it
        status: int,
        title: str = "",
        field: str = "",
        may_retry: bool = False,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{type}: {detail}")
        self.type = type
        self.title = title
        self.detail = detail
        self.field = field
        self.status = status
        self.may_retry = may_retry
        self.retry_after_s = retry_after_s


class NoValue(ParrotError):
    """The variable has no value and will have none: see `CallFailed`, `Cancelled` and `Skipped`.

    Attributes:
        type: the stable slug of the failure, such as "prompt_too_long" or "upstream_failed".
        message: what happened, and how to mend it.
        call_id: the call or block that failed; may be empty.
        cause: the type of the failure at the root, when this one follows from another; else `type`.
        cause_call_id: the call or block at the root.
    """

    def __init__(
        self,
        message: str,
        *,
        type: str,  # noqa: A002 - the same word as in RequestRefused
        call_id: str = "",
        cause: str = "",
        cause_call_id: str = "",
    ) -> None:
        super().__init__(f"{type}: {message}")
        self.type = type
        self.message = message
        self.call_id = call_id
        self.cause = cause or type
        self.cause_call_id = cause_call_id or call_id


class CallFailed(NoValue):
    """The call that makes the variable failed, or one it depends on."""


class Cancelled(NoValue):
    """The variable's call, or its session, was cancelled."""


class Skipped(Cancelled):
    """The variable's call was left out, because the condition it stands under does not hold."""


class InvalidOutput(ParrotError, ValueError):
    """The text of a typed output is not what its type demands, such as JSON that was cut off at the
    output's length.

    Attributes:
        text: the output as it is.
    """

    def __init__(self, message: str, *, text: str) -> None:
        super().__init__(message)
        self.text = text


class WaitTimeout(ParrotError, TimeoutError):
    """A wait ended by the `timeout` it was given. The call itself goes on."""
