"""A native call that a sandbox runs, as its engine gets it; and where it goes."""

from __future__ import annotations

from dataclasses import replace

from tests.support.machine import SESSION, Rig, new, only

from parrot_manager import programs
from parrot_manager.call_requests import parse_call
from parrot_manager.condition_requests import Checks
from parrot_manager.core import commands
from parrot_manager.core.model import CallState, NativeKind, Variable, VariableState
from parrot_manager.core.submissions import NewCall
from parrot_proto.common.v1 import common_pb2
from parrot_proto.manager.v1 import manager_pb2 as pb

SOURCE = "def f(a, b):\n    return {'c': a, 'd': b}\n"


def sandboxed() -> NewCall:
    """A function of two inputs and two outputs."""
    holes = [
        common_pb2.Segment(input=common_pb2.InputHole(name="a", variable_id="x", transforms=["strip"])),
        common_pb2.Segment(input=common_pb2.InputHole(name="b", variable_id="y")),
        common_pb2.Segment(output=common_pb2.OutputHole(name="c", variable_id="v")),
        common_pb2.Segment(output=common_pb2.OutputHole(name="d", variable_id="w", transforms=["upper"])),
    ]
    native = pb.Native(sandbox=pb.NativeSandbox(source=SOURCE, entry="f", timeout_ms=5, memory_bytes=7 << 20))
    return parse_call(pb.NewCall(name="f", segments=holes, native=native), "calls[0]", Checks())


def dispatched() -> commands.Dispatch:
    """The command that sends it to an engine."""
    rig = Rig()
    rig.open()
    rig.engine(model="python")
    told = rig.submit([sandboxed()], ["x", "y"])
    (dispatch,) = only(commands.Dispatch, told)
    return dispatch


def test_a_function_goes_to_a_sandbox_with_its_inputs_and_outputs() -> None:
    program = programs.build(dispatched(), {})
    code = program.code
    assert not program.operations
    assert program.model == "python"
    assert (code.source, code.entry, code.timeout_ms, code.memory_bytes) == (SOURCE, "f", 5, 7 << 20)
    assert [(given.name, given.source.variable_id) for given in code.inputs] == [("a", "x"), ("b", "y")]
    assert list(code.inputs[0].source.transforms) == ["strip"]
    assert code.inputs[0].source.final_subject.endswith(f"{SESSION}.x")
    assert [(made.name, made.sink.variable_id) for made in code.outputs] == [("c", "v"), ("d", "w")]
    assert list(code.outputs[1].sink.transforms) == ["upper"]


def test_an_output_that_an_earlier_attempt_made_is_not_made_again() -> None:
    made = Variable(SESSION, "v", "c", VariableState.READY, size_bytes=3)
    program = programs.build(replace(dispatched(), made=(made,)), {})
    first, second = program.code.outputs
    assert (first.name, first.HasField("sink")) == ("c", False)
    assert second.HasField("sink")


def test_code_goes_to_no_model_and_prompts_to_no_sandbox() -> None:
    rig = Rig()
    rig.open()
    rig.engine("e-model", model="m")
    rig.submit([sandboxed(), new("g", "", "out", model="")], ["x", "y"])
    assert rig.call("c-1").state is CallState.READY
    assert rig.call("c-2").engine_id == "e-model"
    rig.engine("e-sandbox", model="python")
    assert rig.call("c-1").engine_id == "e-sandbox"
    rig.die("e-model")
    rig.submit([new("h", "", "end", model="")])
    assert rig.call("c-3").state is CallState.READY
    assert rig.machine.state.models() == []


def test_a_function_has_no_prompt_to_share_and_is_not_sent_ahead() -> None:
    rig = Rig()
    rig.open()
    rig.engine("e-model", model="m")
    rig.engine("e-sandbox", model="python")
    call = sandboxed()
    assert (call.shape, call.native) == ((), NativeKind.SANDBOX)
    rig.submit([new("g", "", "x", model="m"), call], ["y"])
    assert rig.call("c-2").state is CallState.WAITING
    rig.done(rig.call("c-1").ref)
    assert rig.call("c-2").engine_id == "e-sandbox"
