"""What every part of a request has in common."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from parrot_runtime import limits


class Sent(BaseModel):
    """What a client sends: strictly typed, and nothing beside."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _listed(given: object) -> object:
    return [given] if isinstance(given, str) else given


TextList = Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=list[str] | str)]
"""A list of texts; one alone may stand for a list of it."""

CriteriaKind = Literal["latency", "throughput", "deadline", "ttft"]


class NewCriteria(Sent):
    """What is wanted of outputs."""

    kind: CriteriaKind = Field(
        description="latency: the whole soon; throughput: sometime, at little cost; deadline: the whole by a "
        "time; ttft: the first token soon"
    )
    deadline_unix_ms: int = Field(default=0, ge=0, le=limits.UNIX_MS, description="for a deadline: when")
