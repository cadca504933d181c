"""Shared contexts: where a prefix is, what is shared of a prompt, and for how long an engine keeps it.

A context that a waiting call will fork is kept; the last user frees it. What several sessions used is kept
for those that come, a bounded number of them on each engine.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from typing import Final

from parrot_manager.core.commands import ExpectUses, FreeContexts, Share
from parrot_manager.core.model import SharedContext
from parrot_manager.core.prefixes import Prefix
from parrot_manager.core.scheduling.calls import QueuedCall
from parrot_manager.core.scheduling.engines import EngineLoad, Home
from parrot_manager.core.scheduling.passed import Passed
from parrot_manager.core.scheduling.uses import NEVER, Uses

KEPT: Final = 256
"""Shared contexts of one engine that no call uses or waits for; the one unused for longest is freed."""
LEFT: Final = 1_024
"""Engines that left and may attach anew, of which it is remembered whose their contexts were."""


class Contexts:
    """The table from prefix hash to the engines that hold it."""

    def __init__(self, share_tokens: int) -> None:
        self._share_tokens = share_tokens
        self._uses = Uses()
        self._passed = Passed(share_tokens)
        self._engines: dict[str, dict[str, EngineLoad]] = {}
        self._told: dict[str, float] = {}
        self._touched: dict[str, None] = {}
        self._free: dict[str, list[str]] = {}
        self._later: dict[str, dict[str, None]] = {}
        """By prefix, engines where nobody uses it while somebody waits for it: looked at when none does."""
        self._left: OrderedDict[str, tuple[str, ...]] = OrderedDict()
        """By engine that left, the prefixes of its contexts that are this manager's to free."""

    # Who will use what.

    def expect(self, call: QueuedCall, *, ready: bool) -> None:
        """A call will use its prefixes: soon, if it is ready."""
        self._touch(self._uses.expect(call, ready=ready))

    def forget(self, key: tuple[str, str]) -> None:
        """A call waits no longer."""
        self._touch(self._uses.forget(key))

    # Where it is.

    def engines(self, call: QueuedCall, most: int) -> list[EngineLoad]:
        """Engines with room that hold a prefix of a call, or may have it cached; the longest first."""
        found: dict[str, EngineLoad] = {}
        for prefix in reversed(call.prefixes):
            homes = self._engines.get(prefix.hash, {})
            for name, load in chain(homes.items(), self._passed.engines(prefix.hash).items()):
                if load.keys:
                    found.setdefault(name, load)
                    if len(found) == most:
                        return list(found.values())
        return list(found.values())

    def passed_tokens(self, load: EngineLoad, call: QueuedCall) -> int:
        """Tokens of a call's prompt that an engine may have in its own cache."""
        for prefix in reversed(call.prefixes):
            if self._passed.has(load, prefix.hash):
                return prefix.tokens
        return 0

    def held_tokens(self, load: EngineLoad, call: QueuedCall) -> int:
        """Those that a shared context there holds, or will hold before the call begins."""
        if not load.homes:
            return 0
        for prefix in reversed(call.prefixes):
            home = load.homes.get(prefix.hash)
            if home is not None and home.in_kv:
                return prefix.tokens
        return 0

    def report(self, load: EngineLoad, contexts: Iterable[SharedContext], gone: Iterable[str]) -> None:
        """An engine says which shared contexts came, changed, or are gone."""
        for context in contexts:
            known = load.homes.get(context.prefix_hash)
            own = min(known.own_tokens, context.tokens) if known is not None else context.tokens
            mine = known is not None and known.mine
            in_kv = context.in_kv
            home = Home(context.context_id, context.tokens, own, in_kv=in_kv, filled=in_kv, mine=mine)
            self._put(load, context.prefix_hash, home)
        ids = set(gone)
        if ids:
            for name in [name for name, home in load.homes.items() if home.context_id in ids]:
                self._drop(load, name)

    def join(self, load: EngineLoad, contexts: Iterable[SharedContext]) -> None:
        """An engine comes with these; when it was here before, those that were this manager's still are."""
        self.report(load, contexts, ())
        for name in self._left.pop(load.engine.id, ()):
            home = load.homes.get(name)
            if home is not None:
                home.mine = True
                load.kept[name] = None
                self._later.setdefault(name, {})[load.engine.id] = None

    def leave(self, load: EngineLoad) -> None:
        """An engine is gone, with all it held."""
        mine = tuple(name for name, home in load.homes.items() if home.mine)
        if mine:
            self._left[load.engine.id] = mine
            if len(self._left) > LEFT:
                self._left.popitem(last=False)
        for name in list(load.homes):
            self._drop(load, name)
        self._passed.leave(load)
        self._free.pop(load.engine.id, None)

    # What is shared, and kept.

    def shares(self, load: EngineLoad, call: QueuedCall) -> tuple[Share, ...]:
        """The prefixes of a call that are to be contexts on an engine, shortest first.

        They go up to the longest that is there already, that others wait for, or that recurs. The shorter
        ones are its parents: a context holds one fill.
        """
        known = [prefix for prefix in call.prefixes if prefix.complete]
        while known and not self._worth(load, known[-1]):
            known.pop()
        return tuple(Share(prefix.pieces, prefix.hash, self._steps(prefix.hash)) for prefix in known)

    def use(self, load: EngineLoad, call: QueuedCall, shares: tuple[Share, ...]) -> None:
        """A call was placed: its shares will be on the engine, and what it uses was used."""
        self._uses.used(call)
        self._passed.note(load, call)
        below = 0
        for share, prefix in zip(shares, call.prefixes, strict=False):
            name = share.prefix_hash
            home = load.homes.get(name)
            if home is None or not home.in_kv:
                self._put(load, name, Home(name, prefix.tokens, prefix.tokens - below, mine=True))
            else:
                home.mine = True
            load.kept.pop(name, None)
            self._told.setdefault(name, share.steps_to_next_use)
            below = prefix.tokens

    def held(self, load: EngineLoad, call: QueuedCall) -> tuple[str, ...]:
        """The prefixes of a call that runs on an engine already, as far as they are contexts there."""
        names = tuple(prefix.hash for prefix in call.prefixes if prefix.hash in load.homes)
        for name in names:
            load.homes[name].mine = True
            load.kept.pop(name, None)
        return names

    def filled(self, load: EngineLoad, names: Iterable[str]) -> None:
        """An attempt made its outputs in these."""
        for name in names:
            home = load.homes.get(name)
            if home is not None:
                home.filled = True

    def unused(self, load: EngineLoad, names: Iterable[str]) -> None:
        """An attempt that used these on an engine is over; what nobody has filled, nobody fills now."""
        for name in names:
            home = load.homes.get(name)
            if home is not None and not home.users and not home.filled:
                self._put(load, name, replace(home, in_kv=False))
            self._look(load, name)

    def drain(self) -> list[FreeContexts | ExpectUses]:
        """What engines are to be told since it was last asked."""
        uses: dict[str, list[tuple[str, float]]] = {}
        touched, self._touched = self._touched, {}
        for name in touched:
            if not self._uses.waiting(name):
                self._look_again(name)
            steps = self._steps(name)
            if name in self._engines and _differ(self._told.get(name), steps):
                self._told[name] = steps
                self._tell(name, steps, uses)
        free, self._free = self._free, {}
        return [
            *(FreeContexts(engine_id, tuple(ids)) for engine_id, ids in free.items()),
            *(ExpectUses(engine_id, tuple(of)) for engine_id, of in uses.items()),
        ]

    def _worth(self, load: EngineLoad, prefix: Prefix) -> bool:
        if prefix.tokens < self._share_tokens:
            return False
        name = prefix.hash
        return name in load.homes or self._uses.waiting(name) > 0 or self._uses.recurs(name)

    def _tell(self, name: str, steps: float, uses: dict[str, list[tuple[str, float]]]) -> None:
        for engine_id, load in self._engines[name].items():
            uses.setdefault(engine_id, []).append((load.homes[name].context_id, steps))

    def _look_again(self, name: str) -> None:
        for engine_id in self._later.pop(name, ()):
            load = self._engines.get(name, {}).get(engine_id)
            if load is not None:
                self._look(load, name)

    def _look(self, load: EngineLoad, name: str) -> None:
        """Frees a context that nobody needs, or keeps it for those that may come."""
        home = load.homes.get(name)
        if home is None or home.users or not home.mine:
            return
        if self._uses.waiting(name):
            self._later.setdefault(name, {})[load.engine.id] = None
            return
        if self._steps(name) == NEVER:
            self._give_up(load, name)
            return
        load.kept[name] = None
        load.kept.move_to_end(name)
        while len(load.kept) > KEPT:
            oldest = next(iter(load.kept))
            del load.kept[oldest]
            if self._uses.waiting(oldest):
                self._later.setdefault(oldest, {})[load.engine.id] = None
            elif not load.homes[oldest].users:
                self._give_up(load, oldest)

    def _give_up(self, load: EngineLoad, name: str) -> None:
        self._free.setdefault(load.engine.id, []).append(load.homes[name].context_id)
        self._drop(load, name)

    def _steps(self, name: str) -> float:
        return self._uses.steps(name, len(self._engines.get(name, ())))

    def _touch(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._engines:
                self._touched[name] = None

    def _put(self, load: EngineLoad, name: str, home: Home) -> None:
        load.put_home(name, home)
        self._engines.setdefault(name, {})[load.engine.id] = load

    def _drop(self, load: EngineLoad, name: str) -> None:
        load.drop_home(name)
        load.kept.pop(name, None)
        engines = self._engines[name]
        del engines[load.engine.id]
        if not engines:
            del self._engines[name]
            self._told.pop(name, None)
            self._later.pop(name, None)


def _differ(told: float | None, steps: float) -> bool:
    """Whether an engine should hear of it: it does not mind small changes of large numbers."""
    return told is None or abs(told - steps) > 0.5 * max(abs(told), abs(steps))
