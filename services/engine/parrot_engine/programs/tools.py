"""What every program of an engine runs with."""

from __future__ import annotations

from dataclasses import dataclass, field

from parrot_engine.admission import Admission
from parrot_engine.backends.base import Backend
from parrot_engine.meters import Meters
from parrot_engine.programs.outputs import Press
from parrot_engine.programs.pace import Pace
from parrot_engine.programs.siblings import Siblings
from parrot_engine.shared import SharedContexts
from parrot_proto.common.v1 import common_pb2
from parrot_runtime.version import parrot_version


@dataclass(frozen=True, slots=True)
class Features:
    """What can be switched off, to see what it is worth; the tokens are the same either way.

    Attributes:
        static_prefill: constant text is prefilled before the input behind it is there.
        dynamic_prefill: an input is prefilled while it is being produced.
        prefix_sharing: KV of one program serves another with the same prefix.
    """

    static_prefill: bool = True
    dynamic_prefill: bool = True
    prefix_sharing: bool = True


@dataclass(frozen=True, slots=True)
class Tools:
    """See the module."""

    engine_id: str
    backend: Backend
    press: Press
    admission: Admission
    shared: SharedContexts
    pace: Pace
    features: Features = Features()
    meters: Meters = field(default_factory=Meters)
    siblings: Siblings = field(default_factory=Siblings)

    @classmethod
    def of(
        cls, engine_id: str, backend: Backend, press: Press, features: Features, meters: Meters | None = None
    ) -> Tools:
        """The tools of an engine whose backend has started."""
        info = backend.info
        admission = Admission(info.capacity, info.kv_tokens)
        shared = SharedContexts(backend, press.report)
        pace = Pace(lambda: backend.stats().step_ms)
        return cls(engine_id, backend, press, admission, shared, pace, features, meters or Meters())

    def provenance(self) -> common_pb2.Provenance:
        """What makes this engine's tokens."""
        info = self.backend.info
        return common_pb2.Provenance(
            engine_id=self.engine_id,
            model=info.model,
            dtype=info.dtype,
            backend=info.backend,
            backend_version=info.version,
            attention=info.attention,
            tensor_parallel=info.tensor_parallel,
            batch_invariant=info.batch_invariant,
            version=parrot_version(),
        )
