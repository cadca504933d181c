"""Who goes first, and where to."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parrot_manager.core.model import Engine, EngineState, Ref
from parrot_manager.core.scheduler import EngineLoad, QueuedCall, ReadyQueue, schedule


def queued(session: str, order: int, model: str = "m", created_ms: int = 0) -> QueuedCall:
    return QueuedCall(created_ms, session, order, f"c-{order}", model, 0)


def load(name: str, capacity: int, running: int = 0, model: str = "m") -> EngineLoad:
    refs = {Ref(name, f"c-{n}", 1): None for n in range(running)}
    return EngineLoad(Engine(name, 1, model, capacity), refs)


def ready(*calls: QueuedCall) -> ReadyQueue:
    queue = ReadyQueue()
    for item in calls:
        queue.add(item)
    return queue


def test_the_oldest_session_goes_first_then_topological_order() -> None:
    queue = ready(
        queued("young", 1, created_ms=2), queued("old", 2, created_ms=1), queued("old", 1, created_ms=1)
    )
    placed = schedule(queue, [load("e", 2)])
    assert [(p.call.session_id, p.call.order) for p in placed] == [("old", 1), ("old", 2)]


def test_the_least_loaded_engine_of_the_model_is_taken() -> None:
    engines = [load("busy", 4, 2), load("idle", 4, 0), load("other", 9, 0, model="n")]
    placed = schedule(ready(*(queued("s", n) for n in range(4))), engines)
    assert [p.engine_id for p in placed] == ["idle", "idle", "busy", "idle"]


def test_a_call_without_a_model_goes_anywhere() -> None:
    placed = schedule(ready(queued("s", 1, model="")), [load("e", 1, model="n")])
    assert [p.engine_id for p in placed] == ["e"]


def test_a_model_without_room_does_not_hold_up_another() -> None:
    queue = ready(queued("s", 1, "full"), queued("s", 2, "m"))
    placed = schedule(queue, [load("a", 1, 1, "full"), load("b", 1)])
    assert [(p.call.order, p.engine_id) for p in placed] == [(2, "b")]


def test_a_draining_engine_takes_nothing() -> None:
    draining = EngineLoad(Engine("e", 1, "m", 4, state=EngineState.DRAINING))
    assert schedule(ready(queued("s", 1)), [draining]) == []


def test_a_discarded_call_is_not_placed() -> None:
    queue = ready(queued("s", 1), queued("s", 2))
    queue.discard(queued("s", 1))
    queue.discard(queued("s", 1))
    assert [p.call.order for p in schedule(queue, [load("e", 4)])] == [2]
    assert len(queue) == 1


models = st.sampled_from(["", "m", "n"])


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), models), unique=True, max_size=20),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 4), st.sampled_from("mn")), max_size=4),
)
def test_placements_fit_are_in_order_and_leave_no_room_unused(
    calls: list[tuple[str, int, str]], fleet: list[tuple[int, int, str]]
) -> None:
    queue = ready(*(queued(session, order, model) for session, order, model in calls))
    engines = [load(f"e{n}", capacity, running, model) for n, (capacity, running, model) in enumerate(fleet)]
    placed = schedule(queue, engines)
    taken = {engine.engine.id: sum(p.engine_id == engine.engine.id for p in placed) for engine in engines}
    by_id = {engine.engine.id: engine for engine in engines}
    assert all(taken[name] <= by_id[name].free for name in taken)
    assert all(by_id[p.engine_id].serves(p.call.model) for p in placed)
    assert [p.call for p in placed] == sorted(p.call for p in placed)
    left = {queued(*item) for item in calls} - {p.call for p in placed}
    for item in left:
        assert not any(e.serves(item.model) and e.free > taken[e.engine.id] for e in engines)
    assert schedule(queue, engines) == placed
