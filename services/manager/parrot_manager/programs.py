"""A call as a program: micro-tasks over contexts.

What several calls begin with is filled into shared contexts, one for each piece, each a fork of the one
before. From the last of them the call's own context goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Final

from parrot_manager.convert import to_ref
from parrot_manager.core.commands import Dispatch, Share
from parrot_manager.core.model import NativeKind, Streamed, Variable
from parrot_manager.core.shapes import InputPiece
from parrot_manager.specs import pieces_of, roles_of
from parrot_proto.common.v1 import common_pb2
from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.values.subjects import SessionSubjects

VERSION: Final = 1


def build(command: Dispatch, trace_context: Mapping[str, str]) -> engine_pb2.RunProgram:
    """The program an engine is to run for a call.

    Raises:
        Fault: `not_resumable`, when the call's earlier attempts left it so that it can't go on.
    """
    session, call = command.session, command.call
    pieces = pieces_of(call.spec)
    operations = _Operations(command)
    in_sandbox = call.native is NativeKind.SANDBOX
    return engine_pb2.RunProgram(
        version=VERSION,
        ref=to_ref(call.ref),
        tenant=session.tenant,
        name=call.name,
        model=call.model,
        operations=operations.of(pieces) if not in_sandbox else (),
        code=operations.code(call.spec) if in_sandbox else None,
        deadline_unix_ms=session.deadline_ms,
        trace_context=trace_context,
        priority=command.priority,
        expected_output_tokens=command.expected_output_tokens,
        step_ms=command.step_ms,
        beside_share=command.beside_share,
        chat_roles=roles_of(pieces),
    )


class _Operations:
    """Turns pieces into operations, in order."""

    def __init__(self, command: Dispatch) -> None:
        session, call = command.session, command.call
        self._names = SessionSubjects(session.tenant, session.id)
        self._inputs = iter([edge.variable_id for edge in call.inputs])
        self._outputs = iter([edge.variable_id for edge in call.outputs])
        self._known: dict[str, Variable] = {variable.id: variable for variable in command.inputs}
        self._made: dict[str, Variable] = {variable.id: variable for variable in command.made}
        self._pending = dict(command.pending)
        self._streamed = {streamed.variable_id: _text(streamed) for streamed in command.resume}
        self._contexts = _contexts(command)
        self._turns = count()

    def of(self, pieces: Sequence[common_pb2.Segment]) -> list[engine_pb2.Operation]:
        """Each piece's operation; what follows the last output that is still to be made has none."""
        operations = [self._operation(piece) for piece in pieces]
        while operations and not operations[-1].HasField("generate"):
            operations.pop()
        return operations

    def code(self, spec: bytes) -> engine_pb2.Code:
        """A native call's function, with where its inputs are and its outputs go; those made before too."""
        message = manager_pb2.NewCall.FromString(spec)
        sandbox = message.native.sandbox
        holes = [segment for segment in message.segments if segment.WhichOneof("piece")]
        return engine_pb2.Code(
            source=sandbox.source,
            entry=sandbox.entry,
            timeout_ms=sandbox.timeout_ms,
            memory_bytes=sandbox.memory_bytes,
            inputs=[
                engine_pb2.CodeInput(
                    name=hole.input.name, source=self._source(hole.input, next(self._inputs))
                )
                for hole in holes
                if hole.HasField("input")
            ],
            outputs=[self._code_output(hole.output) for hole in holes if hole.HasField("output")],
        )

    def _code_output(self, hole: common_pb2.OutputHole) -> engine_pb2.CodeOutput:
        variable_id = next(self._outputs)
        sink = self._sink(hole, variable_id) if variable_id not in self._made else None
        return engine_pb2.CodeOutput(name=hole.name, sink=sink)

    def _operation(self, piece: common_pb2.Segment) -> engine_pb2.Operation:
        context_id, parent_id, shared = next(self._contexts)
        if piece.HasField("output"):
            variable_id = next(self._outputs)
            if variable_id not in self._made:
                task = self._generate(piece.output, variable_id)
                task.context_id, task.parent_context_id = context_id, parent_id
                return engine_pb2.Operation(generate=task)
            content = self._fill_made(piece.output, variable_id)
        elif piece.HasField("input"):
            content = engine_pb2.Fill(variable=self._source(piece.input, next(self._inputs)))
        else:
            content = self._constant(piece)
        content.context_id, content.parent_context_id = context_id, parent_id
        if shared is not None:
            content.shared.CopyFrom(shared)
        return engine_pb2.Operation(fill=content)

    def _constant(self, piece: common_pb2.Segment) -> engine_pb2.Fill:
        kind = piece.WhichOneof("piece")
        if kind == "turn":
            return engine_pb2.Fill(chat_turn=next(self._turns))
        if kind == "tokens":
            return engine_pb2.Fill(tokens=engine_pb2.TokenIds(ids=piece.tokens.ids))
        if kind == "plain":
            return engine_pb2.Fill(plain_text=piece.plain, private=piece.private)
        return engine_pb2.Fill(template_text=piece.text, private=piece.private)

    def _source(self, hole: common_pb2.InputHole, variable_id: str) -> engine_pb2.VariableSource:
        variable = self._known[variable_id]
        return engine_pb2.VariableSource(
            variable_id=variable_id,
            final_subject=self._names.final(variable_id),
            size_bytes=variable.size_bytes,
            transforms=hole.transforms,
            pending=variable_id in self._pending,
            expected_tokens=self._pending.get(variable_id, 0),
        )

    def _fill_made(self, hole: common_pb2.OutputHole, variable_id: str) -> engine_pb2.Fill:
        """An output an earlier attempt made: its text is part of the prompt for what follows."""
        if hole.transforms:
            # Only the transformed text was published; the prompt holds what was generated.
            raise Fault(
                errors.NOT_RESUMABLE,
                "an output with transforms was made before the call was broken off, and what follows it in"
                " the prompt can't go on without its whole text; submit the call again",
                variable_id=variable_id,
            )
        return engine_pb2.Fill(
            variable=engine_pb2.VariableSource(
                variable_id=variable_id,
                final_subject=self._names.final(variable_id),
                size_bytes=self._made[variable_id].size_bytes,
            )
        )

    def _generate(self, hole: common_pb2.OutputHole, variable_id: str) -> engine_pb2.Generate:
        return engine_pb2.Generate(
            sampling=hole.sampling,
            output=self._sink(hole, variable_id),
            streamed_text=self._streamed.get(variable_id, ""),
        )

    def _sink(self, hole: common_pb2.OutputHole, variable_id: str) -> engine_pb2.VariableSink:
        return engine_pb2.VariableSink(
            variable_id=variable_id,
            delta_subject=self._names.delta,
            final_subject=self._names.final(variable_id),
            transforms=hole.transforms,
        )


def _text(streamed: Streamed) -> str:
    try:
        return streamed.data.decode()
    except UnicodeDecodeError:
        raise Fault(
            errors.NOT_RESUMABLE,
            "what an earlier attempt streamed of an output is no text; submit the call again",
            variable_id=streamed.variable_id,
        ) from None


def _contexts(command: Dispatch) -> Iterator[tuple[str, str, engine_pb2.SharedFill | None]]:
    """For each piece its context, the one that is a fork of, and what makes it a shared one.

    An engine's shared context is one fill. Where a share holds several pieces, those before its last have
    contexts that are named after it.
    """
    own_id = f"{command.session.id}/{command.call.id}/{command.call.attempt}"
    parent_id, done = "", 0
    for share in _usable(command):
        for place in range(done + 1, share.pieces + 1):
            name = share.prefix_hash if place == share.pieces else f"{share.prefix_hash}.{place}"
            steps = share.steps_to_next_use
            yield name, parent_id, engine_pb2.SharedFill(prefix_hash=name, steps_to_next_use=steps)
            parent_id = name
        done = share.pieces
    while True:
        yield own_id, parent_id, None


def _usable(command: Dispatch) -> list[Share]:
    """The shares whose variables all have their values: a context is named by what it holds."""
    pending = {name for name, _ in command.pending}
    whole = 0
    for piece in command.call.shape:
        if isinstance(piece, InputPiece) and piece.variable_id in pending:
            break
        whole += 1
    return [share for share in command.shares if share.pieces <= whole]
