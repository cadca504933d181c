"""The prototype's calls: binding, outputs of one's own, stateful calls, natives; and what it got wrong."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest

import parrot
from parrot import P
from parrot.compat.arguments import ArgumentError
from parrot.compat.body import ParameterLoc
from parrot.compat.functions import SemanticCall, SemanticFunction
from parrot.nodes import Call
from parrot.template import Hole, Text, parse


class Recorder(parrot.Session):
    """Stands for a session: keeps the calls."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1:1")
        self._id = "s00-0000000000000000"
        self.calls: list[Call] = []

    def _add(self, node: Any) -> None:
        self.calls.append(node)

    def _flush_soon(self) -> None:
        """Nothing is sent."""


@pytest.fixture
def recorder() -> Any:
    """What calls join in the test."""
    recorder = Recorder().use()
    yield recorder
    recorder.unuse()


def define(template: str, inputs: str, outputs: str) -> SemanticFunction:
    """A function of a template, as it is."""
    params = [P.Parameter(name, P.ParamType.INPUT_LOC) for name in inputs.split()]
    params += [P.Parameter(name, P.ParamType.OUTPUT_LOC) for name in outputs.split()]
    return P.VirtualMachine("http://127.0.0.1:1").define_function(None, template, params)


@P.semantic_function()
def three(a: P.Input, b: int, c: P.Output, d: P.Output) -> None:
    """This {{b}} is a test {{a}}: {{d}} then {{c}}"""


def test_inputs_bind_by_place_and_outputs_by_name_only(recorder: Any) -> None:
    c, d = three("x", b=[1, 2])
    (call,) = recorder.calls
    assert call.inputs == {"b": "[1, 2]", "a": "x"}
    # In the parameters' order, whatever the template's.
    assert (call.outputs["c"], call.outputs["d"]) == (c, d)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        (("x", 1, "c"), {}, "too many positional"),
        (("x",), {}, "missing arguments: b"),
        (("x", 1), {"a": "y"}, "multiple values"),
        (("x", 1), {"z": "y"}, "unexpected keyword"),
        (("x", 1), {"c": "text"}, "c is an output"),
    ]
    for args, kwargs, reason in wrong:
        with pytest.raises(ArgumentError, match=reason) as caught:
            three(*args, **kwargs)
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, TypeError)


def test_a_default_stands_for_an_input_that_is_left_out_and_no_name_is_taken(recorder: Any) -> None:
    @P.semantic_function()
    def greet(session: P.Input, tone: str = "calm", name: P.Input = "you", out: P.Output = None) -> None:  # type: ignore[assignment]
        """{{session}} {{tone}} {{name}}: {{out}}"""

    greet("hi", name="me")
    assert recorder.calls[0].inputs == {"session": "hi", "tone": "calm", "name": "me"}
    with pytest.raises(ArgumentError, match="missing arguments: session"):
        greet(name="me")


def test_preallocated_outputs_are_used_and_not_returned(recorder: Any) -> None:
    given = P.variable("given")
    made = three("x", 1, d=given)
    (call,) = recorder.calls
    assert call.outputs["d"] is given
    assert call.outputs["c"] is made
    assert three("x", 1, c=P.variable(), d=P.variable()) == ()


def test_no_argument_can_become_a_hole(recorder: Any) -> None:
    three("{{evil}} {{c}}", "{{'}} {{output:d}}")
    (call,) = recorder.calls
    holes = [piece.name for piece in parse(call.template) if isinstance(piece, Hole)]
    assert holes == ["b", "a", "d", "c"]
    assert call.inputs == {"b": "{{'}} {{output:d}}", "a": "{{evil}} {{c}}"}


def test_outside_of_any_session_a_call_is_an_object_with_the_wires_payload(
    caplog: pytest.LogCaptureFixture,
) -> None:
    call = three("{{x}}", 400)
    assert isinstance(call, SemanticCall)
    payload = call.to_request_payload()
    assert payload["template"] == "This {{b}} is a test {{a}}: {{d}} then {{c}}"
    assert [(p["name"], p["is_output"], p.get("value")) for p in payload["parameters"]] == [
        ("a", False, "{{x}}"),
        ("b", False, "400"),
        ("c", True, None),
        ("d", True, None),
    ]
    assert payload["parameters"][2]["sampling_config"]["max_gen_length"] == 512
    assert "outside of any session" in caplog.text
    # It is no variable, and nothing that uses it as one goes on.
    with pytest.raises(parrot.SessionError, match="outside of any session"):
        call.get()
    with pytest.raises(parrot.SessionError, match="outside of any session"):
        three(call, 1)
    with pytest.raises(AttributeError, match="nonsense"):
        _ = call.nonsense


def test_metadata_is_checked_when_a_function_is_defined() -> None:
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"model_type": "bytes"}, ValueError),
        ({"models": "one"}, TypeError),
        ({"output_criteria": "soon"}, ValueError),
        ({"nonsense": 1}, TypeError),
    ]
    for metadata, error in wrong:
        with pytest.raises(error):
            P.semantic_function(**metadata)


def test_output_criteria_go_with_the_call(recorder: Any) -> None:
    @P.semantic_function(output_criteria=P.PerformanceCriteria.LATENCY, models=["m"], model_type="text")
    def eager(a: P.Input, b: P.Output) -> None:
        """{{a}} {{b}}"""

    eager("x")
    wire = recorder.calls[0].to_wire()
    assert wire["model"] == "m"
    assert wire["placeholders"][1]["criteria"] == {"kind": "latency"}


def test_a_typed_output_is_held_to_its_type(recorder: Any) -> None:
    @P.semantic_function()
    def judge(a: P.Input, verdict: P.Output[Literal["yes", "no"]]) -> None:
        """{{a}}? {{verdict}}"""

    judge("x")
    assert recorder.calls[0].sampling["verdict"]["guide"] == {"choice": ["yes", "no"]}


@P.semantic_function(remove_pure_fill=False)
def begin() -> None:
    """A chat."""


turn = define(" USER: {{human}} ASSISTANT: {{ai}}", "human", "ai")


def test_a_stateful_call_goes_on_where_the_one_before_ended(recorder: Any) -> None:
    assert begin.invoke_statefully(context_successor=turn) == ()
    assert recorder.calls == []
    first = turn.invoke_statefully(turn, human="{{ai}}")
    second = turn.invoke_statefully(context_successor=turn, human="two")
    third = turn("three")
    fresh = turn("four")
    shown = [shown_prompt(call) for call in recorder.calls]
    assert shown[0] == "A chat. USER: <{{ai}}> ASSISTANT: [ai]"
    assert shown[1] == f"A chat. USER: <{{{{ai}}}}> ASSISTANT: <{first.id}> USER: <two> ASSISTANT: [ai]"
    assert shown[2] == (
        f"A chat. USER: <{{{{ai}}}}> ASSISTANT: <{first.id}> USER: <two> ASSISTANT: <{second.id}>"
        " USER: <three> ASSISTANT: [ai]"
    )
    # The context was taken by the third, which left none.
    assert shown[3] == " USER: <four> ASSISTANT: [ai]"
    assert len({third.id, fresh.id}) == 2
    # What was said once is sent once: it is the same variable in all of them.
    said: list[Any] = [given for call in recorder.calls for given in call.inputs.values()]
    ids = [given.id for given in said if getattr(given, "content", None) == "{{ai}}"]
    assert len(ids) == 3
    assert len(set(ids)) == 1


def shown_prompt(call: Call) -> str:
    """A prompt with what stands in its holes."""

    def shown(hole: Hole) -> str:
        given = call.inputs.get(hole.name)
        if isinstance(given, parrot.SemanticVariable):
            return f"<{given.id if given.content is None else given.content}>"
        return f"[{hole.name}]" if given is None else f"<{given}>"

    return "".join(p.text if isinstance(p, Text) else shown(p) for p in parse(call.template))


def test_a_function_without_an_output_can_only_be_gone_on_from(recorder: Any) -> None:
    with pytest.raises(parrot.PlaceholderError, match="invoke_statefully"):
        begin()
    assert recorder.calls == []


def test_a_variable_says_what_the_prototypes_says(recorder: Any) -> None:
    unset, ready = P.variable(), P.variable("named", "text")
    assert unset.name.startswith("var_")
    assert ready.name == "named"
    assert (unset.is_ready, ready.is_ready, ready.content) == (False, True, "text")
    assert not unset.is_registered
    unset.assign_id("mine")
    assert unset.id == "mine"
    recorder._outbox.know(unset)
    unset._session = recorder
    registered: bool = P.variable().is_registered or unset.is_registered
    assert registered
    with pytest.raises(parrot.SessionError, match="belongs to a session"):
        unset.assign_id("other")


def test_what_is_said_of_a_native_functions_texts_goes_with_its_call(recorder: Any) -> None:
    @P.native_function(output_criteria=P.PerformanceCriteria.LATENCY)
    def count(
        text: Annotated[str, P.Input(transforms="strip")],
        plain: Annotated[str, P.Input(transforms="lower")],
        number: P.Output[int],
    ) -> None:
        """Never run here."""

    number = count("a", P.variable(content="B"))
    wire = recorder.calls[0].to_wire()
    assert wire["native"]["kind"] == "client"
    assert [p.get("transforms") for p in wire["placeholders"]] == [["strip"], ["lower"], None]
    assert "sampling" not in wire["placeholders"][2]
    assert wire["placeholders"][2]["criteria"] == {"kind": "latency"}
    number._resolve("7")
    assert number.get() == 7


def test_native_functions_say_what_they_are() -> None:
    @P.native_function(timeout=2.0)
    def add(a: P.Input, b: int, c: P.Output) -> None:
        """Never run here."""

    assert add.display_signature() == "add(a: INPUT_LOC, b: INPUT_PYOBJ, c: OUTPUT_LOC)"
    assert [param.name for param in add.inputs] == ["a", "b"]
    assert add.get_pyfunc().__name__ == "add"
    call = add("1", 2)
    payload = call.to_request_payload()
    assert payload["parameters"][:2] == [
        {"name": "a", "is_output": False, "value": "1"},
        {"name": "b", "is_output": False, "value": "2"},
    ]
    assert "func_code" not in payload
    with pytest.raises(parrot.PlaceholderError, match="has no output"):

        @P.native_function()
        def outputless(a: P.Input) -> None:
            """Nobody would wait for it."""

    for timeout in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="timeout"):
            P.native_function(timeout=timeout)


def test_a_machine_is_refused_without_a_server() -> None:
    with pytest.raises(TypeError, match="core_http_addr"):
        P.VirtualMachine()
    with pytest.raises(TypeError, match="core_http_addr"):
        P.VirtualMachine("http://x", os_http_addr="http://x")
    with pytest.raises(ValueError, match="URL"):
        P.VirtualMachine("localhost:9000")
    with pytest.raises(ValueError, match="mode"):
        P.VirtualMachine("http://localhost:9000", "fast")  # type: ignore[arg-type]


def test_functions_are_imported_by_name_and_what_is_wrong_is_said() -> None:
    machine = P.VirtualMachine("http://localhost:9000")
    assert machine.import_function("three", __name__) is three
    with pytest.raises(ImportError, match="nonsense from module"):
        machine.import_function("nonsense", __name__)
    with pytest.raises(ImportError, match="no_such_module"):
        machine.import_function("three", "no_such_module")
    with pytest.raises(ValueError, match="not a semantic function"):
        machine.import_function("shown_prompt", __name__)


def test_places_of_a_body_can_be_looked_at() -> None:
    assert [isinstance(piece, ParameterLoc) for piece in three.body] == [False, True] * 4
    assert three.prefix.text == "This "
    with pytest.raises(parrot.TemplateError, match="does not begin with text"):
        _ = define("{{a}} {{b}}", "a", "b").prefix
