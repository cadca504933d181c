"""Names on the bus. Every part of a subject is an id: no dots, blanks or wildcards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from parrot_runtime.ids import shard_of

DELTA_STREAM: Final = "PARROT_DELTAS"
FINAL_STREAM: Final = "PARROT_FINALS"
STREAMS: Final = (DELTA_STREAM, FINAL_STREAM)
DELTA_ROOT: Final = "sv.delta"
STATE_ROOT: Final = "sv.state"
FINAL_ROOT: Final = "sv.final"
LIVE_ROOT: Final = "live"
DELTA_EPOCH_ROOT: Final = "sv.epoch.delta"
FINAL_EPOCH_ROOT: Final = "sv.epoch.final"


@dataclass(frozen=True, slots=True)
class SessionSubjects:
    """The subjects of one session. The server republishes what it accepted under `live.`."""

    tenant: str
    session_id: str

    @property
    def _scope(self) -> str:
        return f"{shard_of(self.session_id):02x}.{self.tenant}.{self.session_id}"

    @property
    def delta(self) -> str:
        """Where the session's step messages go."""
        return f"{DELTA_ROOT}.{self._scope}"

    @property
    def state(self) -> str:
        """Where its manager tells what became of its things; in the deltas' stream."""
        return f"{STATE_ROOT}.{self._scope}"

    @property
    def log(self) -> str:
        """Step messages and states, in the one order of their stream."""
        return f"sv.*.{self._scope}"

    @property
    def live_log(self) -> str:
        """Where both are heard, as the stream accepts them."""
        return f"{LIVE_ROOT}.{self.log}"

    def final(self, variable_id: str) -> str:
        """Where a variable's end goes."""
        return f"{FINAL_ROOT}.{self._scope}.{variable_id}"

    @property
    def finals(self) -> str:
        """All of the session's finals and their parts, for a purge."""
        return f"{FINAL_ROOT}.{self._scope}.>"

    @property
    def live_delta(self) -> str:
        """Where accepted step messages are heard."""
        return f"{LIVE_ROOT}.{self.delta}"

    @property
    def live_finals(self) -> str:
        """Where accepted ends are heard; parts are not."""
        return f"{LIVE_ROOT}.{FINAL_ROOT}.{self._scope}.*"


def delta_epoch(shard: int, engine_id: str) -> str:
    """Where an engine's epoch for the deltas of a shard is kept."""
    return f"{DELTA_EPOCH_ROOT}.{shard:02x}.{engine_id}"


def final_epoch(shard: int, engine_id: str) -> str:
    """Where an engine's epoch for the finals of a shard is kept."""
    return f"{FINAL_EPOCH_ROOT}.{shard:02x}.{engine_id}"


def part(final_subject: str, index: int) -> str:
    """Where part `index` (from 1) of a large value goes."""
    return f"{final_subject}.{index}"


def rollout(final_subject: str, part_index: int) -> str:
    """Where part `part_index` (from 0) of an output's rollout goes."""
    return f"{final_subject}.rollout.{part_index}"
