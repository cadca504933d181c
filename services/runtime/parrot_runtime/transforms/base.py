"""What can be wrong with a transform."""

from __future__ import annotations


class TransformError(Exception):
    """A transform is none, or does not apply. Its text never quotes the value's.

    Attributes:
        why: the reason alone.
        place: the transform's place among those it was named with, from 0.
    """

    def __init__(self, why: str, place: int = 0) -> None:
        self.why = why
        self.place = place
        super().__init__(why)


class InvalidTransformError(TransformError):
    """What was named is no transform, whatever the text."""


class NotApplicableError(TransformError):
    """The transform does not apply to this text."""
