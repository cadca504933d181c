"""What every part of a request has in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict


class Sent(BaseModel):
    """What a client sends: strictly typed, and nothing beside."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _listed(given: object) -> object:
    return [given] if isinstance(given, str) else given


TextList = Annotated[list[str], BeforeValidator(_listed, json_schema_input_type=list[str] | str)]
"""A list of texts; one alone may stand for a list of it."""
