"""The shapes of what workers of the client send and get."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field, model_validator

from parrot_gateway.sent import Sent
from parrot_runtime import limits


class Worker(Sent):
    """Who asks."""

    worker: str = Field(
        min_length=1,
        description=f"the worker's name, the client's choice; at most {limits.NAME_CHARS} characters",
        examples=["w-6f1d2c"],
    )


class NativeError(Sent):
    """That the function failed."""

    message: str = Field(description="for people; what is longer than 2 KiB is cut")


class Result(Worker):
    """What a call came to: its outputs, or an error."""

    outputs: dict[str, str] | None = Field(
        default=None,
        description="each output of the call by its placeholder's name; "
        f"at most {limits.VALUE_BYTES:,} bytes each, and {limits.BATCH_BYTES:,} together",
    )
    error: NativeError | None = None

    @model_validator(mode="after")
    def _one(self) -> Result:
        if (self.outputs is None) == (self.error is None):
            raise ValueError("give either outputs or error")
        return self


class ClaimResource(BaseModel):
    """A call that is this worker's now, or that still waits for its inputs."""

    state: Literal["waiting", "claimed"]
    inputs: dict[str, str] = Field(default_factory=dict, description="by placeholder, transformed")
    lease_s: float | None = Field(
        default=None, description="the call fails after so long unless the claim is renewed"
    )


class LeaseResource(BaseModel):
    """For how much longer a call is the worker's."""

    lease_s: float


class ResultResource(BaseModel):
    """How the call ended: failed, where it came with an error, or a transform of an output does not apply."""

    state: Literal["done", "failed"]
