"""`python -m tests.simulation.mutations`: breaks the core on purpose, and shows the seed that finds it out.

Each mutation is a change of one module's source, made as it is imported in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
SEEDS = 2_000
CORE = "parrot_manager.core."


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mistake somebody could make. `before` is in the module once, and becomes `after`."""

    name: str
    module: str
    before: str
    after: str


MUTATIONS = (
    Mutation(
        "decodes again what was streamed",
        CORE + "queueing",
        "resume=trouble.streamed if trouble is not None else (),",
        "resume=(),",
    ),
    Mutation(
        "does not fence an engine that nobody hears of",
        CORE + "engines",
        "            look(turn, attempt.ref, restarted=True, fence=True)",
        "            look(turn, attempt.ref, restarted=True)",
    ),
    Mutation(
        "does not look for what a lost attempt left",
        CORE + "attempts",
        "    trouble.streamed = event.streamed\n",
        "",
    ),
    Mutation(
        "runs what was running before a restart again",
        CORE + "restoring",
        "    _resume_attempts(turn, live, event.attempts)\n",
        "",
    ),
    Mutation(
        "tells nothing of what its last manager stored and did not tell",
        "parrot_runtime.values.states",
        "        self._due = restored + self._due\n",
        "",
    ),
    Mutation(
        "forgets what it tells when another message was the last",
        "parrot_runtime.values.states",
        "            self.told(last.sequence)\n            return True\n",
        "            self.told(last.sequence)\n            self._due.clear()\n            return True\n",
    ),
    Mutation(
        "heeds an older attempt's report",
        CORE + "attempts",
        "if live is None or attempt is None or attempt.ref != ref:",
        "if live is None or attempt is None:",
    ),
    Mutation(
        "commits a call before its inputs",
        CORE + "attempts",
        "    if call.id in live.missing:\n        live.early[call.id] = done\n    else:\n        finish(",
        "    if call.id in live.early:\n        live.early[call.id] = done\n    else:\n        finish(",
    ),
    Mutation(
        "commits what a lost call made before its inputs",
        CORE + "attempts",
        "    if call.id not in live.missing:\n        trouble.made = ()\n",
        "    if call.id in live.attempts:\n        trouble.made = ()\n",
    ),
    Mutation(
        "dispatches without storing the attempt",
        CORE + "turn",
        "        self._touch(attempt.ref.session_id).attempts[attempt.ref] = attempt\n",
        "",
    ),
    Mutation(
        "gives up at the first loss",
        CORE + "retries",
        "    if call.losses >= turn.policy.max_losses:",
        "    if call.losses >= 0:",
    ),
    Mutation(
        "never tries again after a back-off",
        CORE + "attempts",
        "    if live is not None and live.backing_off(call_id):\n",
        "    if live is not None and live.backing_off(call_id) and call_id in live.idle:\n",
    ),
    Mutation(
        "does not count off what came",
        CORE + "queueing",
        "            live.missing[call_id] -= 1\n",
        "            live.missing[call_id] -= live.calls[call_id].number % 2\n",
    ),
    Mutation(
        "lets a failure stop at its first victim",
        CORE + "endings",
        "                pending += _end_with(turn, live, live.calls[call_id], variable)",
        "                _end_with(turn, live, live.calls[call_id], variable)",
    ),
    Mutation(
        "does not stop what is cancelled",
        CORE + "turn",
        "            live.stopping[attempt.ref] = attempt.engine_id\n"
        "            self.do(Cancel(attempt.ref, attempt.engine_id, reason))",
        "            live.stopping[attempt.ref] = attempt.engine_id",
    ),
    Mutation(
        "accepts a batch again that was sent twice",
        CORE + "admission",
        "    found = batches.get(key) if key else None",
        "    found = None",
    ),
    Mutation(
        "forgets batches when a session moves",
        CORE + "restoring",
        "    live.batches.update((batch.key, batch) for batch in event.batches)\n",
        "",
    ),
    Mutation(
        "restores a session without its deadline",
        CORE + "restoring",
        "        turn.arm(TimerKind.SESSION_DEADLINE, session.id, session.deadline_ms)\n",
        "        pass\n",
    ),
    Mutation(
        "waits for ever for an engine to claim what it ran",
        CORE + "restoring",
        "        turn.arm(TimerKind.ADOPT, live.session.id, turn.now_ms + turn.policy.adopt_ms)\n",
        "        pass\n",
    ),
    Mutation(
        "keeps the slots of a session that is another manager's",
        CORE + "restoring",
        "        turn.state.fleet.freed(attempt.engine_id, attempt.ref)\n",
        "",
    ),
    Mutation(
        "places one call more than an engine takes",
        CORE + "scheduling.engines",
        "return max(0, self.engine.capacity - ",
        "return max(0, 1 + self.engine.capacity - ",
    ),
    Mutation(
        "carries out one placement of many",
        CORE + "queueing",
        "    for placement in turn.state.fleet.place(turn.now_ms):",
        "    for placement in turn.state.fleet.place(turn.now_ms)[:1]:",
    ),
    Mutation(
        "never frees a shared context",
        CORE + "machine",
        "        for command in self.state.fleet.drain_keeps():",
        "        for command in self.state.fleet.drain_keeps()[:0]:",
    ),
    Mutation(
        "does not store that somebody reads a lazy session",
        CORE + "joining",
        "            turn.save_variable(live, replace(variable, criteria=criteria))",
        "            live.put_variable(replace(variable, criteria=criteria))",
    ),
    Mutation(
        "leaves a session open that ends with its calls",
        CORE + "machine",
        "        sessions.close_finished(turn)",
        "        sessions.close_finished(Turn(self.state, self.policy, now_ms))",
    ),
    Mutation(
        "forgets why an output ended",
        CORE + "endings",
        "            finish_reason=value.finish_reason,",
        "",
    ),
    Mutation(
        "lets a manager write after it lost the shard",
        "parrot_manager.store.memory",
        "        if self._leases.epoch_of(shard_of(session_id)) != epoch:",
        "        if self._leases.epoch_of(shard_of(session_id)) < 0:",
    ),
    Mutation(
        "gives a call that a worker has to another",
        CORE + "claims",
        '    if offer is not None and offer.worker not in {"", worker}:',
        '    if offer is not None and offer.worker == "nobody":',
    ),
    Mutation(
        "forgets at a restart who has a call",
        CORE + "offers",
        "    worker = worker_of(call)\n    if worker:",
        '    worker = ""\n    if worker:',
    ),
    Mutation(
        "does not heed workers that are still there",
        CORE + "natives",
        "        hold(turn, live, call, event.worker, turn.now_ms + turn.policy.claim_ms)",
        "        del live, call",
    ),
    Mutation(
        "waits for a worker for ever",
        CORE + "natives",
        "        fail(turn, live, call, _lost(turn, call, offer.worker))",
        "        turn.reconsidered[session_id] = None",
    ),
    Mutation(
        "does not tell what a worker made",
        CORE + "natives",
        "        turn.do(PublishValue(live.session.id, live.session.tenant, value))",
        "        del value",
    ),
    Mutation(
        "does not tell again what a worker made before a restart",
        CORE + "restoring",
        "    tell_stored(turn, live)\n",
        "",
    ),
)


class _Mutator(MetaPathFinder):
    """Finds the module that is to be mutated, before anybody else does."""

    def __init__(self, mutation: Mutation) -> None:
        self._mutation = mutation

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._mutation.module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._mutation)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, fullname: str, path: str, mutation: Mutation) -> None:
        super().__init__(fullname, path)
        self._mutation = mutation

    def get_data(self, path: str) -> bytes:
        """The source with the mistake in it."""
        return mutated(super().get_data(path).decode(), self._mutation).encode()

    def path_stats(self, path: str) -> dict[str, float]:
        """None, so that nothing compiled is read or written."""
        raise OSError(path)


def mutated(source: str, mutation: Mutation) -> str:
    """A module's source with a mutation.

    Raises:
        ValueError: the module is not any more as the mutation knows it.
    """
    if source.count(mutation.before) != 1:
        raise ValueError(f"{mutation.name!r}: {mutation.module} has no such place, or more than one")
    return source.replace(mutation.before, mutation.after)


def hunt(mutation: Mutation, seeds: int) -> str:
    """The first seed that finds a mutation out, and how; empty when none of them does."""
    command = [sys.executable, "-m", "tests.simulation.mutations", "--one", mutation.name]
    found = subprocess.run(
        [*command, "--seeds", str(seeds)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise RuntimeError(found.stderr)
    return found.stdout.strip()


def _hunt_here(mutation: Mutation, seeds: int) -> None:
    sys.meta_path.insert(0, _Mutator(mutation))
    from tests.simulation.run import play

    for seed in range(1, seeds + 1):
        outcome = play(seed)
        if outcome.broke:
            sys.stdout.write(f"seed {seed}: {outcome.broke[:150]}\n")
            return


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="how many are tried")
    parser.add_argument("--one", help="the name of the only one")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if options.one is not None:
        _hunt_here(next(m for m in MUTATIONS if m.name == options.one), options.seeds)
        return 0
    with ThreadPoolExecutor(options.workers) as pool:
        found = list(pool.map(lambda mutation: hunt(mutation, options.seeds), MUTATIONS))
    for mutation, how in zip(MUTATIONS, found, strict=True):
        sys.stdout.write(f"{mutation.name:<55} {how or 'NOT CAUGHT'}\n")
    return 0 if all(found) else 1


if __name__ == "__main__":
    sys.exit(main())
