"""A call as a program: micro-tasks over one context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from parrot_manager.convert import to_ref
from parrot_manager.core.commands import Dispatch
from parrot_manager.core.model import Variable
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime.values.subjects import SessionSubjects

VERSION: Final = 1


def build(command: Dispatch, trace_context: Mapping[str, str]) -> engine_pb2.RunProgram:
    """The program an engine is to run for a call."""
    session, call = command.session, command.call
    segments = manager_pb2.NewCall.FromString(call.spec).segments
    return engine_pb2.RunProgram(
        version=VERSION,
        ref=to_ref(call.ref),
        tenant=session.tenant,
        name=call.name,
        model=call.model,
        operations=_Operations(command).of(_needed(segments)),
        deadline_unix_ms=session.deadline_ms,
        trace_context=trace_context,
    )


def _needed(segments: Sequence[common_pb2.Segment]) -> Sequence[common_pb2.Segment]:
    """Up to the last output: nothing reads what follows it."""
    last = max(i for i, segment in enumerate(segments) if segment.HasField("output"))
    return segments[: last + 1]


class _Operations:
    def __init__(self, command: Dispatch) -> None:
        session, call = command.session, command.call
        self._names = SessionSubjects(session.tenant, session.id)
        self._context_id = f"{session.id}/{call.id}/{call.attempt}"
        self._inputs: dict[str, Variable] = {variable.id: variable for variable in command.inputs}

    def of(self, segments: Sequence[common_pb2.Segment]) -> list[engine_pb2.Operation]:
        """Each segment's operation; template text without any text has none."""
        return [
            self._operation(segment)
            for segment in segments
            if segment.WhichOneof("piece") and segment != _EMPTY
        ]

    def _operation(self, segment: common_pb2.Segment) -> engine_pb2.Operation:
        if segment.HasField("output"):
            return engine_pb2.Operation(generate=self._generate(segment.output))
        fill = engine_pb2.Fill(context_id=self._context_id)
        if segment.HasField("input"):
            fill.variable.CopyFrom(self._source(segment.input))
        else:
            fill.template_text = segment.text
        return engine_pb2.Operation(fill=fill)

    def _source(self, hole: common_pb2.InputHole) -> engine_pb2.VariableSource:
        return engine_pb2.VariableSource(
            variable_id=hole.variable_id,
            final_subject=self._names.final(hole.variable_id),
            size_bytes=self._inputs[hole.variable_id].size_bytes,
            transforms=hole.transforms,
        )

    def _generate(self, hole: common_pb2.OutputHole) -> engine_pb2.Generate:
        return engine_pb2.Generate(
            context_id=self._context_id,
            sampling=hole.sampling,
            output=engine_pb2.VariableSink(
                variable_id=hole.variable_id,
                delta_subject=self._names.delta,
                final_subject=self._names.final(hole.variable_id),
                transforms=hole.transforms,
            ),
        )


_EMPTY: Final = common_pb2.Segment(text="")
