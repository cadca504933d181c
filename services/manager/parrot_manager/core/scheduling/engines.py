"""An engine as the scheduler sees it: what runs there, what is in its KV, and how heavy its steps are."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from enum import Enum

from parrot_manager.core.estimates import Lengths
from parrot_manager.core.model import Engine, EngineState, Load, Ref
from parrot_manager.core.paces import Pace, weight
from parrot_manager.core.scheduling.calls import QueuedCall, models_taken

NO_LOAD = Load()


class Kind(Enum):
    """The orders of engines with room."""

    FASTEST = "fastest"
    CALMEST = "calmest"
    PATIENT = "patient"


@dataclass(slots=True)
class Booking:
    """What one attempt has of an engine.

    Attributes:
        call: None: the engine runs it, and that is all that is known.
        output: how long its outputs are expected to get.
        private_tokens: of its prompt outside shared contexts, and of its outputs.
        weight: what a ms it loses weighs.
        patient: it keeps away from those that are not.
        held: the shared contexts it uses, by prefix hash.
        charged: what its tenant was charged for it.
        ends_ms: when it is expected to be done.
    """

    call: QueuedCall | None
    output: Lengths
    private_tokens: int
    weight: float = 1.0
    patient: bool = False
    held: tuple[str, ...] = ()
    charged: float = 0.0
    placed_ms: int = 0
    begins_ms: float = 0.0
    ends_ms: float = 0.0
    step_weight: float = 0.0


UNKNOWN = Booking(None, Lengths(128, 512), 512)


@dataclass(slots=True)
class Home:
    """A shared context on an engine.

    Attributes:
        own_tokens: those that its parent does not have.
        users: attempts that run in forks of it.
        in_kv: its KV is there, or a running attempt fills it.
        filled: its KV is there, as the engine said, or as an attempt that made its outputs in it shows.
        mine: this manager's calls made it or used it, so this manager frees it.
    """

    context_id: str
    tokens: int
    own_tokens: int
    users: int = 0
    in_kv: bool = True
    filled: bool = False
    mine: bool = False


@dataclass(slots=True, eq=False)
class EngineLoad:
    """An engine and the attempts that occupy it.

    Attributes:
        load: what it last said of itself.
        foreign: attempts it runs that are not this manager's.
        homes: shared contexts, by prefix hash.
        kept: those of them that no call uses or waits for, the one unused for longest first.
        ahead: attempts that were sent before their inputs; they have a place when those have come.
        private_tokens: KV that attempts need for themselves.
        used_tokens: KV of shared contexts that attempts run in.
        idle_tokens: KV of shared contexts that none does.
        urgent: attempts that are not patient.
        hurry: what a ms weighs that all attempts lose.
        patience: what of that the patient ones weigh.
        busy_until_ms: when it will have prefilled all that was sent there.
        turn: when it was last given a call, in placements.
        keys: where it stands in the orders of engines with room.
    """

    engine: Engine
    pace: Pace = field(default_factory=Pace)
    running: dict[Ref, Booking] = field(default_factory=dict)
    load: Load = NO_LOAD
    foreign: int = 0
    homes: dict[str, Home] = field(default_factory=dict)
    kept: OrderedDict[str, None] = field(default_factory=OrderedDict)
    ahead: set[Ref] = field(default_factory=set)
    private_tokens: int = 0
    used_tokens: int = 0
    idle_tokens: int = 0
    urgent: int = 0
    hurry: float = 0.0
    patience: float = 0.0
    busy_until_ms: float = 0.0
    turn: int = 0
    keys: dict[tuple[str, Kind], tuple[float, str]] = field(default_factory=dict)

    @property
    def free(self) -> int:
        """Calls it could take now."""
        if self.engine.state is not EngineState.READY:
            return 0
        return max(0, self.engine.capacity - len(self.running) + len(self.ahead) - self.foreign)

    @property
    def kv_tokens(self) -> float:
        """What its KV memory holds; infinite when it has not said."""
        return self.engine.kv_tokens or float("inf")

    @property
    def step_weight(self) -> float:
        """Of a step with all that is there."""
        return weight(len(self.running) + self.foreign, self.private_tokens + self.used_tokens)

    def serves(self, model: str) -> bool:
        """Whether a call of this model may go to it, now or when it has room."""
        return self.engine.state is EngineState.READY and model in models_taken(self.engine.model)

    def backlog_ms(self, now_ms: float) -> float:
        """What is prefilled before anything new."""
        return max(0.0, self.busy_until_ms - now_ms)

    def take(self, ref: Ref, booking: Booking) -> None:
        """Books an attempt."""
        self.running[ref] = booking
        self.private_tokens += booking.private_tokens
        self.urgent += not booking.patient
        self.hurry += booking.weight
        self.patience += booking.weight if booking.patient else 0.0
        for name in booking.held:
            home = self.homes.get(name)
            if home is not None:
                self._count(home, 1)

    def drop(self, ref: Ref) -> Booking | None:
        """An attempt is there no more."""
        booking = self.running.pop(ref, None)
        self.ahead.discard(ref)
        if booking is not None:
            self.private_tokens -= booking.private_tokens
            self.urgent -= not booking.patient
            self.hurry = self.hurry - booking.weight if self.running else 0.0
            patient = booking.weight if booking.patient else 0.0
            self.patience = self.patience - patient if self.running else 0.0
            for name in booking.held:
                home = self.homes.get(name)
                if home is not None:
                    self._count(home, -1)
        return booking

    def put_home(self, prefix_hash: str, home: Home) -> None:
        """A shared context is there, or will be, or changed."""
        self.drop_home(prefix_hash)
        home.users = sum(prefix_hash in booking.held for booking in self.running.values())
        self.homes[prefix_hash] = home
        self._add_tokens(home, home.own_tokens)

    def drop_home(self, prefix_hash: str) -> None:
        """A shared context is gone."""
        home = self.homes.pop(prefix_hash, None)
        if home is not None:
            self._add_tokens(home, -home.own_tokens)

    def _count(self, home: Home, by: int) -> None:
        self._add_tokens(home, -home.own_tokens)
        home.users += by
        self._add_tokens(home, home.own_tokens)

    def _add_tokens(self, home: Home, tokens: int) -> None:
        if home.users:
            self.used_tokens += tokens
        elif home.in_kv:
            self.idle_tokens += tokens
