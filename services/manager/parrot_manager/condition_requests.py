"""The conditions of a request, and what all of a request may bring together."""

from __future__ import annotations

from typing import Final

from parrot_manager import specs
from parrot_manager.core import schemas
from parrot_manager.core.conditions import Condition, Predicate
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors, limits
from parrot_runtime.errors import Fault
from parrot_runtime.ids import ID_RULE, is_id
from parrot_runtime.text import check_name, check_text, too_large
from parrot_runtime.transforms import TransformChecker

Hole = common_pb2.InputHole | common_pb2.OutputHole

_TESTS: Final = ", ".join(test.value for test in Predicate)


class Checks:
    """Checks parts of one request: each by itself, and some by what they come to together."""

    def __init__(self) -> None:
        self.transforms = TransformChecker()
        self._schemas: set[str] = set()

    def check_hole(self, hole: Hole, field: str) -> None:
        """Checks a placeholder.

        Raises:
            Fault: `invalid_request`, `invalid_text`, `too_large`.
        """
        check_name(hole.name, f"{field}.name")
        check_id(hole.variable_id, f"{field}.{hole.name}")
        self.transforms.check(hole.transforms, f"{field}.{hole.name}.transforms")

    def check_condition(self, message: manager_pb2.Condition, field: str) -> None:
        """Checks a condition.

        Raises:
            Fault: `invalid_request`, `invalid_text`, `too_large`.
        """
        check_id(message.variable_id, f"{field}.variable_id")
        if message.WhichOneof("test") is None:
            raise Fault(errors.INVALID_REQUEST, f"{field} asks nothing; give one of {_TESTS}", field=field)
        self.transforms.check(message.transforms, f"{field}.transforms")
        condition = specs.condition_of(message)
        self._check_operand(condition, f"{field}.{condition.test.value}")

    def _check_operand(self, condition: Condition, field: str) -> None:
        check_text(condition.operand, field, limit_bytes=limits.CONDITION_BYTES)
        if condition.test is Predicate.MATCHES:
            self.transforms.check([f"regex:{condition.operand}"], field)
        elif condition.test is Predicate.JSON_SCHEMA:
            self._check_schema(condition.operand, field)

    def _check_schema(self, schema: str, field: str) -> None:
        if schema in self._schemas:
            return
        self._schemas.add(schema)
        size = sum(len(known.encode()) for known in self._schemas)
        if size > limits.BATCH_SCHEMA_BYTES:
            raise too_large(field, size, limits.BATCH_SCHEMA_BYTES, unit="bytes of schemas in a request")
        try:
            schemas.check_schema(schema)
        except schemas.InvalidSchemaError as error:
            raise Fault(errors.INVALID_REQUEST, f"{field} is no JSON schema: {error}", field=field) from None


def check_id(variable_id: str, field: str) -> None:
    """Refuses what is no id of a variable.

    Raises:
        Fault: `invalid_request`.
    """
    if not is_id(variable_id):
        raise Fault(errors.INVALID_REQUEST, f"{field} is no variable id: {ID_RULE}", field=field)
