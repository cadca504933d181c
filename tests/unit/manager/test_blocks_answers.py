"""Questions are answered when the store is back, off the loop where that takes long, and never in vain."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.stage import Stage, new

from parrot_manager import answers
from parrot_manager.answers import INLINE_BYTES, Answers
from parrot_manager.core.blocks import questions
from parrot_manager.core.blocks.questions import Verdict
from parrot_manager.core.conditions import Condition, Predicate
from parrot_manager.core.events import ValuesRead
from parrot_runtime import errors
from parrot_runtime.errors import Fault

pytestmark = pytest.mark.anyio


class Desk:
    """A shell with a machine that asks whether a text contains an x, and a store that fails so often."""

    def __init__(self, text: str, failures: int = 0) -> None:
        self.stage = Stage({"f": lambda texts: "done"})
        when = Condition("a", Predicate.CONTAINS, "x")
        self.stage.submit([new("f", "", "b", when=when)], values={"a": text})
        (self.command,) = self.stage.reading
        self.told: list[ValuesRead] = []
        self.failures = failures
        self.machine = self.stage.machine
        self.store = SimpleNamespace(read_values=self._read)

    def apply(self, event: ValuesRead) -> None:
        """Hears an answer."""
        self.told.append(event)

    async def give(self) -> None:
        """Has the question answered."""
        await Answers(self).give(self.command)  # type: ignore[arg-type]

    async def _read(self, session_id: str, variable_ids: Sequence[str]) -> dict[str, bytes]:
        if self.failures:
            self.failures -= 1
            raise Fault(errors.UNAVAILABLE, "away")
        return {name: self.stage.rows.values[name] for name in variable_ids}


async def test_an_answer_comes_when_the_store_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "RETRY_S", 0)
    desk = Desk("xyz", failures=3)
    await desk.give()
    (told,) = desk.told
    assert (told.owner_id, told.ask, told.answers) == ("c-1", desk.command.ask, (Verdict(True),))


async def test_nobody_is_answered_who_asks_no_more() -> None:
    desk = Desk("xyz", failures=1_000_000)
    desk.stage.close()
    await desk.give()
    assert not desk.told


@pytest.mark.parametrize(("size", "inline"), [(INLINE_BYTES, True), (INLINE_BYTES + 1, False)])
async def test_long_values_are_looked_at_elsewhere(
    monkeypatch: pytest.MonkeyPatch, size: int, inline: bool
) -> None:
    threads: list[threading.Thread] = []

    def note(*asked: Any) -> questions.Answer:
        threads.append(threading.current_thread())
        return questions.answer(*asked)

    monkeypatch.setattr(answers, "answer", note)
    desk = Desk("y" * size)
    await desk.give()
    assert desk.told[0].answers == (Verdict(False),)
    assert (threads == [threading.current_thread()]) is inline
