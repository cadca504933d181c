"""Who goes where and when: one `Fleet`, told of engines and calls as events, asked by `place`.

The machine's part:

- `describe(session, call, variables, now_ms=..., pending=...)` makes the `QueuedCall` of a call as it is now.
- A call that waits for inputs: `fleet.expect(described)`; again when one of its inputs came.
- A call whose inputs are all there, or are all being made by running attempts (`pending`):
  `fleet.ready(described)`; again when its objective changed, when a pending input came, and when an
  attempt was lost and it goes again. `fleet.withdraw` takes it out; `fleet.forget_call` when it ends.
- `fleet.place(now_ms)` gives the placements of a step; then `fleet.dispatched(placement, ref, now_ms)`
  for each, or `fleet.refused(placement)` where it can't be carried out.
- `fleet.started(ref, now_ms)`, `fleet.finished(ref, usage, timings, now_ms)` (done alone),
  `fleet.freed(engine_id, ref)` (the slot, however it ended), `fleet.adopt(engine_id, ref, described)`.
- `fleet.drain_keeps()` at the end of a step: commands of no session.
- `fleet.refuse(tenant, new_calls)` before a batch is accepted.
- `objectives.deduce(live, fleet.estimates, now_ms)` when a session's graph or criteria changed; calls
  whose objective differs are described again.
"""

from parrot_manager.core.scheduling.calls import ANY_MODEL as ANY_MODEL
from parrot_manager.core.scheduling.calls import Pending as Pending
from parrot_manager.core.scheduling.calls import Placement as Placement
from parrot_manager.core.scheduling.calls import QueuedCall as QueuedCall
from parrot_manager.core.scheduling.calls import describe as describe
from parrot_manager.core.scheduling.calls import models_taken as models_taken
from parrot_manager.core.scheduling.engines import EngineLoad as EngineLoad
from parrot_manager.core.scheduling.fleet import Fleet as Fleet
from parrot_manager.core.scheduling.policies import APP_CENTRIC as APP_CENTRIC
from parrot_manager.core.scheduling.policies import POLICIES as POLICIES
from parrot_manager.core.scheduling.policies import SchedulingPolicy as SchedulingPolicy
