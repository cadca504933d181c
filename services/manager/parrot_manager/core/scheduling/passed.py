"""Prefixes that went through an engine without being a shared context: its own cache may still have them.

An engine's cache keeps what was computed last, until its memory is needed. What it has it does not tell, so
this is a guess, as a client's router makes it: good enough to send the second call of a prefix where the
first one went, before anything shows that a third will come.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from typing import Final

from parrot_manager.core.scheduling.calls import QueuedCall
from parrot_manager.core.scheduling.engines import EngineLoad

SHARE_OF_KV: Final = 0.5
"""Of an engine's memory, what is guessed to hold what went through it."""
UNKNOWN_KV_TOKENS: Final = 32_768
"""The same, of an engine that does not say what it has."""
_NOWHERE: Final[Mapping[str, EngineLoad]] = {}


class Passed:
    """By engine, the latest of them; a bounded number of tokens each."""

    def __init__(self, least_tokens: int) -> None:
        """`least_tokens`: a prefix of fewer is not worth remembering."""
        self._least_tokens = least_tokens
        self._of: dict[str, OrderedDict[str, int]] = {}
        self._tokens: dict[str, int] = {}
        self._engines: dict[str, dict[str, EngineLoad]] = {}

    def engines(self, name: str) -> Mapping[str, EngineLoad]:
        """Where a prefix went, by engine."""
        return self._engines.get(name, _NOWHERE)

    def has(self, load: EngineLoad, name: str) -> bool:
        """Whether a prefix went through an engine lately."""
        return load.engine.id in self.engines(name)

    def note(self, load: EngineLoad, call: QueuedCall) -> None:
        """A call goes to an engine, with all its prefixes."""
        engine_id = load.engine.id
        of = self._of.setdefault(engine_id, OrderedDict())
        below = 0
        # The longest goes in first: of a chain, its end is forgotten first, which is of no use alone.
        fresh: list[tuple[str, int]] = []
        for prefix in call.prefixes:
            if prefix.complete and prefix.tokens >= self._least_tokens:
                fresh.append((prefix.hash, prefix.tokens - below))
                below = prefix.tokens
        for name, tokens in reversed(fresh):
            self._tokens[engine_id] = self._tokens.get(engine_id, 0) + tokens - of.get(name, 0)
            of[name] = tokens
            of.move_to_end(name)
            self._engines.setdefault(name, {})[engine_id] = load
        most = SHARE_OF_KV * load.kv_tokens if load.engine.kv_tokens else UNKNOWN_KV_TOKENS
        while of and self._tokens[engine_id] > most:
            self._forget(engine_id, (next(iter(of)),))

    def leave(self, load: EngineLoad) -> None:
        """An engine is gone."""
        self._forget(load.engine.id, tuple(self._of.get(load.engine.id, ())))
        self._of.pop(load.engine.id, None)
        self._tokens.pop(load.engine.id, None)

    def _forget(self, engine_id: str, names: Iterable[str]) -> None:
        of = self._of.get(engine_id, OrderedDict())
        for name in names:
            self._tokens[engine_id] -= of.pop(name)
            engines = self._engines[name]
            del engines[engine_id]
            if not engines:
                del self._engines[name]
