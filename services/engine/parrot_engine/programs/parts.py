"""A piece of a fill."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime import errors, transforms
from parrot_runtime.errors import Fault
from parrot_runtime.transforms import TransformError


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a fill: tokens, or the variable whose text is to be tokenized.

    Attributes:
        private: one tenant's own, and not the same for everyone.
    """

    token_ids: tuple[int, ...] = ()
    source: engine_pb2.VariableSource | None = None
    private: bool = False

    @property
    def key(self) -> bytes:
        """The same for every hole that the same text fills."""
        return self.source.SerializeToString(deterministic=True) if self.source is not None else b""


def variable_part(source: engine_pb2.VariableSource, *more_transforms: str) -> Part:
    """The part that a variable's text is, with transforms beside its own.

    Raises:
        Fault: `transform_failed`: there is no such transform.
    """
    if more_transforms:
        found = engine_pb2.VariableSource()
        found.CopyFrom(source)
        found.transforms.extend(more_transforms)
        source = found
    check_transforms(source.transforms, source.variable_id)
    return Part(source=source, private=True)


def check_transforms(names: Sequence[str], variable_id: str) -> None:
    """Refuses what is no transform.

    Raises:
        Fault: `transform_failed`.
    """
    try:
        transforms.parse_transforms(names)
    except TransformError as error:
        raise Fault(errors.TRANSFORM_FAILED, str(error), variable_id=variable_id) from None
