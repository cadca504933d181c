"""Whatever happens, in whatever order: the promises hold."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.world import World

from parrot_manager.core.machine import Machine
from parrot_manager.core.model import Call, CallState, SessionState, VariableState
from parrot_manager.core.state import Policy


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_promises_hold_in_any_order_of_events(random: object, length: int) -> None:
    world = World(pick=random.randrange)  # type: ignore[attr-defined]
    world.open()
    for _ in range(length):
        world.act()
    world.settle()
    assert all(call.state.ended for call in world.stored.calls.values()), "a call never ends"
    assert all(variable.state.ended for variable in world.stored.variables.values())
    for call in world.stored.calls.values():
        check_end(world, call)
    check_replay(world)


def check_end(world: World, call: Call) -> None:
    """A call's end fits those of its outputs, its inputs and its session."""
    outputs = [world.stored.variables[call.session_id, name] for name in call.output_ids]
    inputs = [world.stored.variables[call.session_id, name] for name in call.input_ids]
    expected = {
        CallState.DONE: VariableState.READY,
        CallState.FAILED: VariableState.FAILED,
        CallState.CANCELLED: VariableState.CANCELLED,
    }[call.state]
    # What an attempt made stays, though its call came to nothing.
    assert all(variable.state in {expected, VariableState.READY} for variable in outputs)
    if call.state is CallState.DONE:
        assert all(variable.state is VariableState.READY for variable in inputs)
    if any(variable.state is VariableState.FAILED for variable in inputs):
        assert call.state is not CallState.DONE
    if call.state is CallState.CANCELLED:
        assert world.stored.sessions[call.session_id].state is SessionState.CANCELLED
    check_cause(world, call)


def check_cause(world: World, call: Call) -> None:
    """What was passed down names the call where it began, which failed of itself."""
    if call.failure is not None and call.failure.type == "upstream_failed":
        root = world.stored.calls[call.session_id, call.failure.cause_call_id].failure
        assert root is not None
        assert root.type == call.failure.cause_type
        assert not root.cause_type
        assert call.failure.call_id == call.id


def check_replay(world: World) -> None:
    """The same events give the same commands."""
    for life in world.history:
        machine = Machine(Policy())
        for event, now_ms, told in life:
            assert machine.step(event, now_ms) == told
