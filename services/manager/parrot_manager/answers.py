"""Answers what the machine wants to know about values, from the store."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from parrot_manager.core.blocks.questions import Answer, Question, answer
from parrot_manager.core.commands import ReadValues
from parrot_manager.core.events import ValuesRead
from parrot_runtime.errors import Fault

if TYPE_CHECKING:
    from parrot_manager.shell import Shell

RETRY_S: Final = 0.25
AT_ONCE: Final = 8
"""Readings under way: each may hold eight mebibytes and more."""
INLINE_BYTES: Final = 65_536
"""More is looked at off the event loop, which engines wait for."""

log = structlog.get_logger()


class Answers:
    """Reads and answers; what nobody waits for any more is dropped."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._places = asyncio.Semaphore(AT_ONCE)

    async def give(self, command: ReadValues) -> None:
        """Answers, however long the store is away."""
        async with self._places:
            while self._is_asked(command):
                wanted = {name for question in command.questions for name in question.variable_ids}
                try:
                    values = await self._shell.store.read_values(command.session_id, sorted(wanted))
                except Fault as fault:
                    log.warning("values not read yet", session_id=command.session_id, reason=fault.message)
                    await asyncio.sleep(RETRY_S)
                else:
                    answers = await _answers(command.questions, values)
                    told = ValuesRead(command.session_id, command.owner_id, command.ask, answers)
                    self._shell.apply(told)
                    return

    def _is_asked(self, command: ReadValues) -> bool:
        live = self._shell.machine.state.sessions.get(command.session_id)
        asked = live.blocks.asked.get(command.owner_id) if live is not None else None
        return asked is not None and asked.ask == command.ask


async def _answers(questions: Sequence[Question], values: Mapping[str, bytes]) -> tuple[Answer, ...]:
    if sum(map(len, values.values())) <= INLINE_BYTES:
        return _all(questions, values)
    return await asyncio.to_thread(_all, questions, values)


def _all(questions: Sequence[Question], values: Mapping[str, bytes]) -> tuple[Answer, ...]:
    return tuple(answer(question, values) for question in questions)
