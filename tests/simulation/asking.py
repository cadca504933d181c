"""How clients and workers reach managers: through gateways that route and retry."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import shard_of
from tests.simulation.intake import Intake
from tests.simulation.kernel import Answer, Process, sleep

if TYPE_CHECKING:
    from tests.simulation.dice import Dice
    from tests.simulation.world import World

T = TypeVar("T")
RPC_MS = 6_000
AGAIN_MS = 300
PASSING = (
    errors.UNAVAILABLE,
    errors.WRONG_MANAGER,
    errors.UNKNOWN_MODEL,
    errors.QUEUE_FULL,
    errors.QUOTA_EXCEEDED,
)


class Asking:
    """Asks whoever serves a session, for as long as the process of whoever asks lives."""

    def __init__(
        self, world: World, session_id: str, process: Process, dice: Dice, rpc_ms: int = RPC_MS
    ) -> None:
        self._world = world
        self._session_id = session_id
        self._process = process
        self._dice = dice
        self._rpc_ms = rpc_ms

    async def ask(self, question: Callable[[Intake], Coroutine[Any, Any, T]]) -> T:
        """Asks the manager that serves the session, again and again while that may help.

        Raises:
            Fault: a refusal that stands.
        """
        while True:
            try:
                return await self._ask_once(question)
            except Fault as fault:
                if fault.kind not in PASSING:
                    raise
            await sleep(self._dice.between(AGAIN_MS // 2, AGAIN_MS))

    async def _ask_once(self, question: Callable[[Intake], Coroutine[Any, Any, T]]) -> T:
        manager = self._world.serving(shard_of(self._session_id))
        unanswered = Fault(errors.UNAVAILABLE, "the manager does not answer")
        answer: Answer[T] = Answer()
        if manager is None:
            raise unanswered
        net = self._world.net

        async def serve() -> None:
            try:
                result = await question(manager.intake)
            except Fault as fault:
                answer_late(answer.refuse, fault)
            else:
                answer_late(answer.give, result)

        def answer_late(tell: Callable[[Any], None], what: object) -> None:
            if not self._dice.chance(net.loss):
                self._process.after(self._dice.between(0, 5), tell, what)

        if not self._dice.chance(net.loss):
            manager.process.after(self._dice.between(0, 5), manager.process.spawn, serve)
        return await answer.get(self._rpc_ms, unanswered)
