"""A program with several inputs that are still being made: one that has ended costs no fill of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.integration.engine.harness import Reports, Session
from tests.integration.engine.test_streaming_programs import feed_of
from tests.support.engine import Pen
from tests.support.eventually import eventually

from parrot_engine.backends.base import FillResult
from parrot_engine.backends.sim import SimBackend
from parrot_engine.programs.table import Programs
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.finals import FinalRecord, Finals

pytestmark = pytest.mark.anyio

INPUTS = [f"x{number}" for number in range(8)]


@dataclass
class Seen:
    """What a program asked for.

    Attributes:
        fills: of each fill that computed something, the tokens that were new.
        reads: the values that the bus was asked for.
    """

    fills: list[int] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)


@pytest.fixture
def seen(sim_backend: SimBackend, monkeypatch: pytest.MonkeyPatch) -> Seen:
    """What is asked for from now on."""
    found = Seen()
    fill, read = sim_backend.fill, Finals.read

    async def watched_fill(token_ids: Sequence[int], *arguments: Any, **settings: Any) -> FillResult:
        if not settings.get("lazy"):
            found.fills.append(len(token_ids))
        return await fill(token_ids, *arguments, **settings)

    async def watched_read(finals: Finals, subject: str) -> FinalRecord | None:
        found.reads.append(subject)
        return await read(finals, subject)

    monkeypatch.setattr(sim_backend, "fill", watched_fill)
    monkeypatch.setattr(Finals, "read", watched_read)
    return found


async def test_inputs_that_ended_while_the_first_was_waited_for_are_not_filled_one_by_one(
    programs: Programs, reports: Reports, session: Session, bus: Bus, seen: Seen
) -> None:
    # Reduces read sixteen summaries that end within a second: a fill for each would take a step for each.
    holes = [part for name in INPUTS for part in (session.text(" and "), session.pending(name))]
    programs.start(session.program(*holes, session.output("y"), call_id="c"))
    feed = await feed_of(programs, session)
    await eventually(lambda: bool(seen.fills))
    for name in INPUTS[1:]:
        pen = Pen(bus, session.names.session_id, name)
        await pen.write(f"the text of {name}")
        await pen.end()
    await eventually(lambda: all(map(feed.has_ended, INPUTS[1:])))
    seen.reads.clear()
    await session.set(bus, INPUTS[0], "the text of x0")
    done = (await reports.kind("done", "c")).done
    assert seen.fills == [0], "the text before the first input, and nothing else"
    assert not seen.reads, "what was heard was kept"
    said = "".join(f" and the text of {name}" for name in INPUTS)
    assert done.usage.prompt_tokens == len(said)
    assert done.timings.static_prefill_tokens == len(" and ")
    assert feed._buffers.keys().isdisjoint(INPUTS), "nor kept any longer than it is wanted"
