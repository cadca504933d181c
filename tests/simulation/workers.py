"""Workers of a client: they claim its native calls, run them, and die or stand still in the middle."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from tests.simulation import texts
from tests.simulation.asking import Asking
from tests.simulation.kernel import Process, sleep
from tests.simulation.violations import promise

if TYPE_CHECKING:
    from tests.simulation.calls import PlannedCall
    from tests.simulation.client import Client
    from tests.simulation.dice import Dice
    from tests.simulation.world import World

LOOK_MS = 400
RENEW_MS = 4_000
UNHEARD_MS = 10_000
"""Whose renewal takes so long may have lost its claim meanwhile."""
RPC_MS = 1_500
BREAK_MS = 16_000
"""Who stands still for so long has lost its claim."""
AGAIN_MS = 1_500


class Worker:
    """One worker of one client, and whoever comes in its place. Names are used once."""

    def __init__(self, world: World, client: Client, number: int) -> None:
        self._world = world
        self._client = client
        self._number = number
        self._lives = 0
        self._dice: Dice = world.dice.apart(f"{client.app.session_id} worker {number}")
        self._start()

    def _start(self) -> None:
        self._lives += 1
        self._name = f"w{self._number}-{self._lives}"
        self._process = Process(self._world.clock, f"{self._name} of {self._client.app.session_id}")
        self._asking = Asking(self._world, self._client.app.session_id, self._process, self._dice, RPC_MS)
        self._process.spawn(self._run)

    async def _run(self) -> None:
        app = self._client.app
        while True:
            await sleep(self._dice.between(LOOK_MS // 2, LOOK_MS))
            if not self._client.opened:
                continue
            try:
                found = await self._asking.ask(lambda intake: intake.natives(app.session_id))
            except Fault as fault:
                if fault.kind in (errors.SESSION_ENDED, errors.NOT_FOUND):
                    return
                continue
            for call_id, output_ids in found:
                await self._take(call_id, output_ids)

    async def _take(self, call_id: str, output_ids: tuple[str, ...]) -> None:
        app, audit = self._client.app, self._world.audit
        audit.claiming(app.session_id, call_id, self._name)
        try:
            planned = app.native(output_ids[0])
            if not planned.inputs and self._dice.chance(0.5):
                made = made_of(planned, output_ids, [])
                await self._complete(call_id, planned.spec.fails, made, unclaimed=True)
                audit.claim_refused(app.session_id, call_id, self._name)
                return
            inputs = await self._asking.ask(lambda intake: intake.claim(app.session_id, call_id, self._name))
            if inputs is None:
                audit.claim_refused(app.session_id, call_id, self._name)
                return
            audit.claimed(app.session_id, call_id, self._name)
            await self._work(call_id, planned.spec.fails, made_of(planned, output_ids, inputs))
        except Fault as fault:
            fits = fault.kind in {errors.CLAIM_LOST, errors.SESSION_ENDED, errors.NOT_FOUND}
            promise(fits, "claim", f"{self._process.name} {call_id}: {fault}")
            audit.claim_refused(app.session_id, call_id, self._name)

    async def _work(self, call_id: str, fails: str, outputs: list[str]) -> None:
        left_ms = self._dice.pick([10, 100, 1_000, 6_000, 20_000])
        while left_ms > 0:
            if self._dice.chance(0.04):
                self._fall()
            spent_ms = min(left_ms, RENEW_MS)
            await sleep(spent_ms)
            left_ms -= spent_ms
            await self._renew(call_id)
        await self._complete(call_id, fails, outputs)

    async def _renew(self, call_id: str) -> None:
        session_id, before_ms = self._client.app.session_id, self._world.clock.now_ms
        try:
            await self._asking.ask(lambda intake: intake.renew(session_id, call_id, self._name))
        finally:
            if self._world.clock.now_ms - before_ms > UNHEARD_MS:
                self._world.audit.forsaken(session_id, self._name)

    async def _complete(
        self, call_id: str, fails: str, outputs: list[str], *, unclaimed: bool = False
    ) -> None:
        session_id = self._client.app.session_id
        for _ in range(2 if self._dice.chance(0.2) else 1):
            taken = await self._asking.ask(
                lambda intake: intake.complete(
                    session_id, call_id, self._name, outputs, fails, unclaimed=unclaimed
                )
            )
            if taken:
                self._world.audit.completed(session_id, call_id)

    def _fall(self) -> None:
        """Dies, and another comes; or stands still for longer than its claim lasts."""
        self._world.audit.forsaken(self._client.app.session_id, self._name)
        if self._dice.chance(0.5):
            self._process.freeze(BREAK_MS)
        else:
            self._process.kill()
            self._world.outside.after(AGAIN_MS, self._start)


def made_of(planned: PlannedCall, output_ids: tuple[str, ...], inputs: list[str]) -> list[str]:
    """What a native call makes of its inputs: what the simulated model would, were it greedy."""
    prompt = texts.prompt_of(planned.spec.function, inputs)
    made: list[str] = []
    for name, output in zip(output_ids, planned.spec.outputs, strict=True):
        made.append(texts.text_of(prompt, replace(output, variable_id=name)))
        prompt += made[-1]
    return made
