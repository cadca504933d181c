"""What is checked when a run has come to its end: every promise about results, and that nothing is left."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from parrot_manager import history
from parrot_manager.core.blocks import lists
from parrot_manager.core.blocks.model import Block, BlockState
from parrot_manager.core.conditions import holds
from parrot_manager.core.model import Call, CallState, Variable, VariableState
from parrot_manager.specs import condition_of
from parrot_runtime import errors
from tests.simulation import texts
from tests.simulation.blocks import PlannedBlock
from tests.simulation.calls import PlannedCall
from tests.simulation.reader import TENANT, at_once
from tests.simulation.texts import Output
from tests.simulation.violations import promise

if TYPE_CHECKING:
    from parrot_manager.core.state import Policy
    from parrot_manager.history import Step
    from parrot_manager.store.base import SessionRecord
    from tests.simulation.client import Client
    from tests.simulation.world import World

MAX_LOSSES = 5


def check_ends(world: World) -> None:
    """Everything accepted has ended, as it would have if nothing had gone wrong."""
    for client in world.clients:
        session_id = client.app.session_id
        record = at_once(world.store.rows.load_session(TENANT, session_id))
        if record is not None:
            _Ends(world, client, record).check()


def check_stopped(world: World) -> None:
    """No engine runs what has ended."""
    for engine in world.engines:
        promise(not engine.programs, "program not stopped", f"{engine.name} runs {list(engine.programs)}")


def check_rest(world: World) -> None:
    """Nothing is left that nobody needs."""
    for manager in world.managers:
        manager.machine.state.check_integrity()
        for load in manager.machine.state.fleet.engines.values():
            promise(not load.running, "slot leaked", f"{manager.name}: {load}")
    if not world.audit.moves:
        # A manager frees only what it asked for: what another made is the engine's to let go.
        _check_contexts(world)


def _check_contexts(world: World) -> None:
    for engine in world.engines:
        kept: dict[str, None] = {}
        for manager in world.managers:
            load = manager.machine.state.fleet.engines.get(engine.name)
            kept.update(dict.fromkeys(load.kept) if load is not None else {})
        leaked = [name for name in engine.contexts if name not in kept]
        promise(not leaked, "context leaked", f"{engine.name} holds {leaked}")


def check_replay(policy: Policy, histories: list[list[Step]]) -> None:
    """The same events give the same commands."""
    for steps in histories:
        for difference in history.replay(policy, steps):
            promise(kept=False, which="replayed otherwise", why=f"{difference}")


class _Ends:
    def __init__(self, world: World, client: Client, record: SessionRecord) -> None:
        self._world = world
        self._client = client
        self._session = record.session
        self._calls = {call.id: call for call in record.calls}
        self._blocks = {block.id: block for block in record.blocks}
        self._variables = {variable.id: variable for variable in record.variables}
        nodes = client.app.nodes
        self._planned = {node.outputs: node for node in nodes}
        bodies = [call for node in nodes if isinstance(node, PlannedBlock) for call in node.body]
        self._bodies = {call.spec.function: call for call in bodies}

    def check(self) -> None:
        """All calls, all blocks, all variables, all readers."""
        for session_id, made_id in self._world.audit.promised:
            if session_id == self._session.id:
                there = made_id in self._calls or made_id in self._blocks
                promise(there, "accepted call lost", f"{session_id} {made_id}")
        for session_id, call_id in self._world.audit.told_completed:
            if session_id == self._session.id:
                self._check_completed(self._calls[call_id])
        for call in self._calls.values():
            promise(call.state.ended, "never ends", f"{call}")
            self._check_call(call, self._call_of(call))
        for block in self._blocks.values():
            promise(block.state.ended, "never ends", f"{block}")
            if block.state is BlockState.DONE:
                self._check_block(block)
        for variable in self._variables.values():
            promise(variable.state.ended, "never ends", f"{variable}")
            self._check_readers(variable)
        self._check_session()

    def _check_session(self) -> None:
        """It is open while nobody closes it, but where it ends with its calls."""
        app = self._client.app
        if app.ends_with_calls and self._calls:
            promise(self._session.state.ended, "left open", f"{self._session}")
        elif app.undisturbed:
            promise(not self._session.state.ended, "closed unasked", f"{self._session}")

    def _check_completed(self, call: Call) -> None:
        """What a worker was told is stored stays so."""
        failed = call.failure is not None and call.failure.type == errors.NATIVE_FAILED.type
        promise(call.state is CallState.DONE or failed, "result lost", f"{call}")

    def _call_of(self, call: Call) -> PlannedCall:
        found = self._bodies[call.name] if call.block_id else self._planned[call.output_ids]
        assert isinstance(found, PlannedCall)
        return found

    def _check_call(self, call: Call, planned: PlannedCall) -> None:
        if call.state is CallState.DONE:
            for name in call.output_ids:
                variable = self._variables[name]
                promise(variable.state is VariableState.READY, "done without a value", f"{variable}")
                reason = "" if planned.native else "stop"
                promise(variable.finish_reason == reason, "end without its reason", f"{variable}")
            self._check_texts(call, planned)
            promise(not self._is_ruled_out(planned), "ran against its condition", f"{call}")
            return
        kind = call.failure.type if call.failure is not None else ""
        promise(bool(kind), "failed without a cause", f"{call}")
        promise(self._may_end(call, planned, kind), "wrong end", f"{call.state.name} {call.failure}: {call}")

    def _may_end(self, call: Call, planned: PlannedCall, kind: str) -> bool:
        """Whether a call may come to such an end, short of a value."""
        if not self._client.app.undisturbed and kind in _DISTURBED:
            return True
        allowed = {
            errors.SKIPPED.type: self._may_be_skipped,
            errors.CANCELLED.type: self._is_of_ended_block,
            errors.UPSTREAM_FAILED.type: self._fits_cause,
            errors.CLIENT_LOST.type: self._is_forsaken,
            errors.NOT_RESUMABLE.type: lambda _, planned: not planned.spec.resumable,
            errors.ENGINE_LOST.type: _lost_too_often,
            errors.INTERRUPTED.type: _lost_too_often,
        }.get(kind, _fails_by_itself)
        return allowed(call, planned)

    def _may_be_skipped(self, call: Call, planned: PlannedCall) -> bool:
        asked = [planned.when.variable_id] if planned.when is not None else []
        return self._is_ruled_out(planned) or any(map(self._is_skipped, [*call.input_ids, *asked]))

    def _is_of_ended_block(self, call: Call, _: PlannedCall) -> bool:
        return bool(call.block_id) and self._blocks[call.block_id].state is not BlockState.DONE

    def _is_forsaken(self, call: Call, planned: PlannedCall) -> bool:
        return planned.native and self._world.audit.may_be_lost(call.session_id, call.id)

    def _is_ruled_out(self, planned: PlannedCall) -> bool:
        """Whether its own condition is known not to hold."""
        if planned.when is None:
            return False
        variable = self._variables[planned.when.variable_id]
        if variable.state is not VariableState.READY:
            return False
        return not holds(condition_of(planned.when), self._value(variable.id))

    def _is_skipped(self, variable_id: str) -> bool:
        why = self._variables[variable_id].failure
        return why is not None and why.type == errors.SKIPPED.type

    def _fits_cause(self, call: Call, _: PlannedCall) -> bool:
        why = call.failure
        if why is None or why.cause_type == errors.UPSTREAM_FAILED.type:
            return False
        root = self._calls.get(why.cause_call_id) or self._blocks.get(why.cause_call_id)
        return root is not None and root.failure is not None and root.failure.type == why.cause_type

    def _check_texts(self, call: Call, planned: PlannedCall) -> None:
        inputs = [self._value(edge.variable_id) for edge in call.inputs]
        prompt = texts.prompt_of(planned.spec.function, inputs)
        for name, output in zip(call.output_ids, planned.spec.outputs, strict=True):
            value = self._value(name)
            where = f"{self._session.id} {name} is {value!r}"
            promise(_fits(value, prompt, replace(output, variable_id=name)), "wrong text", where)
            prompt += value

    def _check_block(self, block: Block) -> None:
        """A block's values are those of its instances."""
        planned = self._planned[block.output_ids]
        assert isinstance(planned, PlannedBlock)
        value = self._value(block.output_ids[0])
        where = f"{self._session.id} {block.id} {planned.message.name} is {value!r}"
        if planned.sources:
            ready = [name for name in planned.sources if self._variables[name].state is VariableState.READY]
            promise(value in map(self._value, ready), "wrong block", where)
        elif planned.collects is not None:
            names = [f"{block.id}-{item}-{planned.collects[0]}" for item in range(block.count)]
            made = [name for name in names if self._variables[name].state is VariableState.READY]
            whole = lists.join([self._value(name) for name in made], planned.collects[1])
            promise(value == whole, "wrong block", f"{where} of {whole!r}")
        else:
            last = self._value(f"{block.id}-{block.count}-{planned.result}")
            promise(value == last, "wrong block", f"{where} after {last!r}")

    def _value(self, variable_id: str) -> str:
        data = at_once(self._world.store.rows.read_value(self._session.id, variable_id))
        promise(data is not None, "value lost", f"{self._session.id} {variable_id}")
        return (data or b"").decode()

    def _check_readers(self, variable: Variable) -> None:
        record = self._client.ended.get(variable.id)
        if record is None:
            return
        where = f"{self._session.id} {variable.id} is {variable.state.name}, a reader was told {record}"
        if variable.state is VariableState.READY:
            promise(record.text == self._value(variable.id), "reader told otherwise", where)
        elif self._client.app.undisturbed:
            promise(record.text is None, "reader told otherwise", where)


def _lost_too_often(call: Call, _: PlannedCall) -> bool:
    return call.losses >= MAX_LOSSES


def _fails_by_itself(call: Call, planned: PlannedCall) -> bool:
    kind = call.failure.type if call.failure is not None else ""
    return kind == planned.spec.fails and call.attempt <= planned.spec.fails_attempts


def _fits(value: str, prompt: str, output: Output) -> bool:
    if not output.sampled:
        return value == texts.text_of(prompt, output)
    head = texts.head_of(prompt, output.variable_id) if output.pieces else ""
    return value.startswith(head) and len(value) == len(texts.text_of(prompt, output))


_DISTURBED = (
    errors.CANCELLED.type,
    errors.DEADLINE_EXCEEDED.type,
    errors.UPSTREAM_FAILED.type,
)
