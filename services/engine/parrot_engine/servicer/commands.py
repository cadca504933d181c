"""Carries out what managers command."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

import structlog

from parrot_engine.backends.base import BackendError
from parrot_engine.programs.marks import Marks
from parrot_engine.programs.table import Key, Programs, key_of
from parrot_engine.servicer.attempts import shard_of_ref
from parrot_engine.servicer.memory import Memory
from parrot_engine.servicer.outbox import Outbox
from parrot_engine.servicer.shards import Shards
from parrot_engine.shared import SharedContexts
from parrot_proto.engine.v1 import engine_pb2
from parrot_runtime.values.fences import Mark

GIVEN_UP: Final = "its manager gave the engine up there"

log = structlog.get_logger()


class Commands:
    """The engine's side of what a manager says. Managers are told apart by their outboxes."""

    def __init__(
        self, engine_id: str, programs: Programs, shared: SharedContexts, shards: Shards, marks: Marks
    ) -> None:
        self._engine_id = engine_id
        self._programs = programs
        self._shared = shared
        self._shards = shards
        self._marks = marks
        self._disowned = Memory[Key, None]()
        marks.on_refused = self._on_refused

    async def obey(self, outbox: Outbox, command: engine_pb2.AttachResponse) -> None:
        """Does what a manager commands; what only its shard's manager may command is not done for others."""
        kind = command.WhichOneof("command")
        try:
            if kind == "run":
                self._run(outbox, command.run)
            elif kind == "cancel":
                self._cancel(outbox, command.cancel)
            elif kind == "adopt":
                self._adopt(outbox, command.adopt.refs)
            elif kind == "epochs":
                self.hear(outbox, command.epochs.epochs)
            elif kind == "free":
                await self._shared.free(command.free.context_ids)
            elif kind == "uses":
                await self._shared.expect(command.uses.uses)
            else:
                log.warning("command not known", kind=kind)
        except BackendError as error:
            log.warning("command not carried out", kind=kind, error=str(error))

    def hear(
        self,
        outbox: Outbox,
        epochs: Iterable[engine_pb2.ShardEpoch],
        claimed: Collection[Key] | None = None,
    ) -> None:
        """Takes up the shards a manager says it serves, and the marks it tells for them.

        What was written under other marks than these is refused: those programs are given up.

        Args:
            claimed: the attempts the manager knows of, where it can know of no others.
        """
        for epoch in epochs:
            if not self._shards.speak(outbox, epoch.shard, epoch.lease_epoch):
                log.warning("manager has lost the shard", shard=epoch.shard, lease_epoch=epoch.lease_epoch)
                continue
            mark = Mark(self._engine_id, epoch.shard, epoch.delta_sequence, epoch.final_sequence)
            if self._marks.put(mark):
                self._programs.give_up(_in_shard(self._programs, epoch.shard), GIVEN_UP)
            if claimed is not None:
                strangers = [key for key in _in_shard(self._programs, epoch.shard) if key not in claimed]
                self._programs.give_up(strangers, "its manager does not know of it")
                self._shards.tell_again(outbox, epoch.shard, claimed)

    def _run(self, outbox: Outbox, program: engine_pb2.RunProgram) -> None:
        if not self._shards.speaks(outbox, shard_of_ref(program.ref)):
            log.warning("program of a manager that lost the shard", session_id=program.ref.session_id)
        elif key_of(program.ref) in self._disowned:
            # Whoever asked for it before it came has moved the call elsewhere since.
            log.warning("program came too late", session_id=program.ref.session_id)
        else:
            self._programs.start(program)

    def _cancel(self, outbox: Outbox, command: engine_pb2.CancelAttempt) -> None:
        if self._shards.speaks(outbox, shard_of_ref(command.ref)):
            self._programs.cancel(command.ref, command.reason)

    def _adopt(self, outbox: Outbox, refs: Iterable[engine_pb2.AttemptRef]) -> None:
        running = {key_of(ref) for ref in self._programs.attempts()}
        answer = engine_pb2.AttemptsAdopted()
        ends: list[engine_pb2.AttachRequest] = []
        for ref in refs:
            if not self._shards.speaks(outbox, shard_of_ref(ref)):
                continue
            if (end := self._shards.end_of(ref)) is not None:
                ends.append(end)
                answer.refs.append(ref)
            elif key_of(ref) in running:
                answer.refs.append(ref)
            else:
                self._disowned.put(key_of(ref), None)
                answer.unknown.append(ref)
        for event in (engine_pb2.AttachRequest(adopted=answer), *ends):
            outbox.put(event)

    def _on_refused(self, shard: int) -> None:
        log.warning("the bus refuses what this engine writes", shard=shard)
        self._programs.give_up(_in_shard(self._programs, shard), GIVEN_UP)
        fenced = engine_pb2.ShardsFenced(shards=[shard])
        self._shards.report_about(shard, engine_pb2.AttachRequest(fenced=fenced))


def _in_shard(programs: Programs, shard: int) -> list[Key]:
    return [key_of(ref) for ref in programs.attempts() if shard_of_ref(ref) == shard]
