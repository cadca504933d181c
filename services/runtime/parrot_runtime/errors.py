"""The table of errors: from a stable slug to a gRPC status and an HTTP status.

Services raise `Fault` with a `Kind` of this table and the ids it concerns. Between processes a
fault travels as a `common.v1.Failure`; the gateway answers with it as problem+json. What happens
to a call (rather than to a request) has a kind too: it is recorded with the call and its outputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from parrot_proto.common.v1 import common_pb2
from parrot_runtime import limits


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of failure: its slug, its statuses, its title, and whether the same may succeed later.

    `grpc` is the name of a `grpc.StatusCode`: the manager's core knows errors, but no RPC library.
    """

    type: str
    http: int
    grpc: str
    title: str
    may_retry: bool = False


# A request that is wrong as it stands.
INVALID_REQUEST = Kind("invalid_request", 400, "INVALID_ARGUMENT", "The request is not valid")
INVALID_TEXT = Kind("invalid_text", 400, "INVALID_ARGUMENT", "A text is not valid Unicode")
INVALID_TEMPLATE = Kind("invalid_template", 400, "INVALID_ARGUMENT", "A prompt template is not valid")
PLACEHOLDER_MISMATCH = Kind(
    "placeholder_mismatch", 400, "INVALID_ARGUMENT", "Template and placeholders do not agree"
)
INVALID_SAMPLING = Kind("invalid_sampling", 400, "INVALID_ARGUMENT", "A sampling setting is out of range")
UNKNOWN_MODEL = Kind("unknown_model", 400, "INVALID_ARGUMENT", "No engine serves this model")
CYCLIC_GRAPH = Kind("cyclic_graph", 400, "INVALID_ARGUMENT", "Calls wait for one another")
UNPRODUCED_VARIABLE = Kind("unproduced_variable", 400, "INVALID_ARGUMENT", "An input has no producer")
INVALID_BLOCK = Kind("invalid_block", 400, "INVALID_ARGUMENT", "A block is not valid")
PREVIOUS_RESPONSE_NOT_FOUND = Kind(
    "previous_response_not_found", 400, "INVALID_ARGUMENT", "There is no such previous response"
)
PREVIOUS_RESPONSE_NOT_DONE = Kind(
    "previous_response_not_done", 400, "INVALID_ARGUMENT", "The previous response is not done"
)
TOO_LARGE = Kind("too_large", 413, "RESOURCE_EXHAUSTED", "A size limit is exceeded")
# A request that its sender may not make, or not now.
UNAUTHENTICATED = Kind("unauthenticated", 401, "UNAUTHENTICATED", "A good API key is needed")
MISDIRECTED = Kind("misdirected", 421, "INVALID_ARGUMENT", "This server does not go by that name")
FORBIDDEN = Kind("forbidden", 403, "PERMISSION_DENIED", "The caller's role may not do this")
FOREIGN_ORIGIN = Kind("foreign_origin", 403, "PERMISSION_DENIED", "No page of that origin may do this")
REQUEST_TIMEOUT = Kind("request_timeout", 408, "DEADLINE_EXCEEDED", "The request came too slowly")
QUOTA_EXCEEDED = Kind("quota_exceeded", 429, "RESOURCE_EXHAUSTED", "A quota is used up", may_retry=True)
RATE_LIMITED = Kind("rate_limited", 429, "RESOURCE_EXHAUSTED", "Too many requests", may_retry=True)
# A request that is at odds with what is there.
NOT_FOUND = Kind("not_found", 404, "NOT_FOUND", "There is no such thing")
EXPIRED_CURSOR = Kind("expired_cursor", 410, "FAILED_PRECONDITION", "What followed is not kept any more")
METHOD_NOT_ALLOWED = Kind("method_not_allowed", 405, "UNIMPLEMENTED", "The method is not allowed here")
DUPLICATE_PRODUCER = Kind("duplicate_producer", 409, "ALREADY_EXISTS", "A variable has two producers")
VARIABLE_ALREADY_SET = Kind("variable_already_set", 409, "ALREADY_EXISTS", "A variable is set once")
SESSION_ENDED = Kind("session_ended", 409, "FAILED_PRECONDITION", "The session has ended")
IDEMPOTENCY_CONFLICT = Kind(
    "idempotency_conflict", 409, "ALREADY_EXISTS", "The key was used for another request"
)
CLAIM_LOST = Kind("claim_lost", 409, "FAILED_PRECONDITION", "The call is another worker's, or has ended")
QUEUE_FULL = Kind("queue_full", 429, "RESOURCE_EXHAUSTED", "Too much is waiting already", may_retry=True)
# The system's own trouble.
UNAVAILABLE = Kind("unavailable", 503, "UNAVAILABLE", "A part of the system can't be reached", may_retry=True)
SLOW_READER = Kind(
    "slow_reader", 503, "RESOURCE_EXHAUSTED", "The reader is slower than what it reads", may_retry=True
)
WRONG_MANAGER = Kind(
    "wrong_manager", 503, "UNAVAILABLE", "Another manager serves this session", may_retry=True
)
INTERNAL = Kind("internal", 500, "INTERNAL", "An unexpected error; the log has it")
# What becomes of a call that was accepted.
PROMPT_TOO_LONG = Kind("prompt_too_long", 422, "FAILED_PRECONDITION", "The prompt exceeds the model's window")
EMPTY_PROMPT = Kind("empty_prompt", 422, "FAILED_PRECONDITION", "There is nothing to generate from")
TRANSFORM_FAILED = Kind("transform_failed", 422, "FAILED_PRECONDITION", "A transform does not apply")
UPSTREAM_FAILED = Kind("upstream_failed", 424, "FAILED_PRECONDITION", "A call it depends on failed")
SKIPPED = Kind("skipped", 409, "CANCELLED", "Its condition does not hold")
CONDITION_FAILED = Kind("condition_failed", 422, "FAILED_PRECONDITION", "A loop's condition never held")
CANCELLED = Kind("cancelled", 409, "CANCELLED", "It was cancelled")
DEADLINE_EXCEEDED = Kind("deadline_exceeded", 504, "DEADLINE_EXCEEDED", "Its deadline passed", may_retry=True)
NATIVE_FAILED = Kind("native_failed", 422, "FAILED_PRECONDITION", "A function of the program failed")
CLIENT_LOST = Kind(
    "client_lost", 504, "DEADLINE_EXCEEDED", "The client that was to run it is gone", may_retry=True
)
NO_ENGINE = Kind("no_engine", 503, "UNAVAILABLE", "No engine came in time", may_retry=True)
ENGINE_LOST = Kind("engine_lost", 503, "UNAVAILABLE", "The engine died", may_retry=True)
ENGINE_ERROR = Kind("engine_error", 502, "INTERNAL", "The engine could not run it", may_retry=True)
INTERRUPTED = Kind("interrupted", 503, "UNAVAILABLE", "The system stopped meanwhile", may_retry=True)
NOT_RESUMABLE = Kind(
    "not_resumable", 503, "UNAVAILABLE", "An output that was broken off can't go on", may_retry=True
)
VALUE_UNAVAILABLE = Kind(
    "value_unavailable", 503, "UNAVAILABLE", "An input's value is not on the bus", may_retry=True
)

KINDS: Final[dict[str, Kind]] = {
    kind.type: kind for kind in list(globals().values()) if isinstance(kind, Kind)
}


class Fault(Exception):
    """A failure with its kind and the ids it concerns.

    `message` says what happened and how to mend it; it never carries prompt or value text, and is
    cut at `limits.ERROR_TEXT_BYTES`.
    """

    def __init__(
        self,
        kind: Kind,
        message: str,
        *,
        field: str = "",
        session_id: str = "",
        call_id: str = "",
        variable_id: str = "",
        cause_type: str = "",
        cause_call_id: str = "",
        retry_after_ms: int = 0,
    ) -> None:
        self.kind = kind
        self.message = clip(message)
        self.field = field
        self.session_id = session_id
        self.call_id = call_id
        self.variable_id = variable_id
        self.cause_type = cause_type
        self.cause_call_id = cause_call_id
        self.retry_after_ms = retry_after_ms
        super().__init__(f"{kind.type}: {self.message}")

    def to_failure(self) -> common_pb2.Failure:
        """The fault as it travels between processes."""
        return common_pb2.Failure(
            type=self.kind.type,
            message=self.message,
            field=self.field,
            session_id=self.session_id,
            call_id=self.call_id,
            variable_id=self.variable_id,
            may_retry=self.kind.may_retry,
            cause_type=self.cause_type,
            cause_call_id=self.cause_call_id,
            retry_after_ms=self.retry_after_ms,
        )

    @classmethod
    def from_failure(cls, failure: common_pb2.Failure) -> Fault:
        """The fault a `Failure` describes; an unknown type (of a newer peer) becomes `internal`."""
        return cls(
            KINDS.get(failure.type, INTERNAL),
            failure.message,
            field=failure.field,
            session_id=failure.session_id,
            call_id=failure.call_id,
            variable_id=failure.variable_id,
            cause_type=failure.cause_type,
            cause_call_id=failure.cause_call_id,
            retry_after_ms=failure.retry_after_ms,
        )


def clip(message: str, limit_bytes: int = limits.ERROR_TEXT_BYTES) -> str:
    """`message` as valid Unicode of at most `limit_bytes` of UTF-8, NUL shown as U+2400."""
    data = message.replace("\0", "\u2400").encode(errors="replace")
    if len(data) <= limit_bytes:
        return data.decode()
    return data[: limit_bytes - 3].decode(errors="ignore") + "…"
