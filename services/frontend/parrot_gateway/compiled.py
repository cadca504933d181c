"""A batch on its way from the client's form to the manager's, and what all its parts share."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b

from parrot_gateway import models
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import ID_RULE, is_id, new_variable_id
from parrot_runtime.text import check_text
from parrot_runtime.transforms import TransformChecker


@dataclass(slots=True)
class Compiled:
    """A batch for the manager, and what the client is told of it.

    Attributes:
        key: the request's idempotency key: the same request under the same key gives the same batch, the
            ids that are made for it included. Empty: it has none.
        placeholders: of each call, in the order they were sent.
        wanted: outputs that will be read.
    """

    key: str = ""
    made_ids: int = 0
    calls: list[manager_pb2.NewCall] = field(default_factory=list)
    values: list[manager_pb2.NewValue] = field(default_factory=list)
    blocks: list[manager_pb2.NewBlock] = field(default_factory=list)
    wanted: list[manager_pb2.Wanted] = field(default_factory=list)
    placeholders: list[list[models.PlaceholderResource]] = field(default_factory=list)
    size_bytes: int = 0
    transforms: TransformChecker = field(default_factory=TransformChecker)

    def new_id(self) -> str:
        """An id for a variable the client did not name."""
        if not self.key:
            return new_variable_id()
        self.made_ids += 1
        return f"v-{blake2b(f'{self.key}/{self.made_ids}'.encode(), digest_size=8).hexdigest()}"

    def add_text(self, text: str, where: str, limit_bytes: int) -> None:
        """Checks a template, value or operand and counts it.

        Raises:
            Fault: `invalid_text`, `too_large`.
        """
        check_text(text, where, limit_bytes=limit_bytes)
        self.size_bytes += len(text.encode())

    def add_transforms(self, names: list[str], where: str) -> None:
        """Checks the transforms of one placeholder or condition and counts them.

        Raises:
            Fault: `invalid_request`, `invalid_text`, `too_large`.
        """
        self.transforms.check(names, where)
        self.size_bytes += sum(len(name.encode()) for name in names)


def check_id(text: str, where: str) -> None:
    """Refuses what is no id of a variable.

    Raises:
        Fault: `invalid_request`.
    """
    if not is_id(text):
        raise Fault(errors.INVALID_REQUEST, f"{where}: an id is {ID_RULE}", field=where)
