"""The prototype's functions: names, signatures, grammar, and its formatters byte for byte."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import parrot
from parrot import P
from parrot.compat.body import Constant, template_of
from parrot.compat.functions import SemanticFunction
from parrot.template import Text, parse


def define(template: str, inputs: str, outputs: str) -> SemanticFunction:
    """A function of a template, as it is."""
    params = [P.Parameter(name, P.ParamType.INPUT_LOC) for name in inputs.split()]
    params += [P.Parameter(name, P.ParamType.OUTPUT_LOC) for name in outputs.split()]
    return P.VirtualMachine("http://127.0.0.1:1").define_function(None, template, params)


def test_the_prototypes_names_are_there_under_both_imports() -> None:
    names = (  # noqa: SIM905 - in a list they would fill a page
        "VirtualMachine Input Output semantic_function native_function variable Parameter ParamType "
        "standard_formatter allowing_newline vicuna_template PerformanceCriteria SamplingConfig "
        "DispatchAnnotation ConversationTemplate FuncMutator Sequential PromptFormatter PyIndentRemover "
        "SquashIntoOneLine AlwaysOneSpace Session map loop"
    ).split()
    for module in (parrot, P):
        assert [name for name in names if not hasattr(module, name)] == []
        assert set(names) <= set(dir(module))
    assert [name for name in parrot.__all__ if not hasattr(P, name)] == []
    assert P.Session is parrot.Session
    assert P.SemanticVariable is parrot.SemanticVariable
    with pytest.raises(AttributeError, match="nonsense"):
        _ = P.nonsense


def test_the_prototypes_module_paths_lead_to_the_same() -> None:
    from parrot.frontend.pfunc import VirtualMachine, standard_formatter
    from parrot.frontend.pfunc.function import Parameter, PyNativeCall
    from parrot.frontend.pfunc.interface import semantic_function
    from parrot.frontend.pfunc.perf_criteria import PerformanceCriteria
    from parrot.frontend.pfunc.semantic_variable import SemanticVariable
    from parrot.frontend.pfunc.transforms.conversation_template import ConversationTemplate
    from parrot.frontend.pfunc.transforms.func_mutator import FuncMutator
    from parrot.frontend.pfunc.transforms.prompt_formatter import AlwaysOneSpace
    from parrot.frontend.pfunc.transforms.sequential import Sequential
    from parrot.frontend.pfunc.vm import VirtualMachine as SameMachine
    from parrot.sampling_config import SamplingConfig

    assert VirtualMachine is SameMachine is P.VirtualMachine
    assert (semantic_function, standard_formatter) == (P.semantic_function, P.standard_formatter)
    assert (Parameter, PerformanceCriteria) == (P.Parameter, P.PerformanceCriteria)
    assert (ConversationTemplate, FuncMutator) == (P.ConversationTemplate, P.FuncMutator)
    assert (AlwaysOneSpace, Sequential) == (P.AlwaysOneSpace, P.Sequential)
    assert SamplingConfig is P.SamplingConfig
    assert isinstance(P.variable(), SemanticVariable)
    assert PyNativeCall.__module__ == "parrot.compat.native"


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (P.semantic_function, "formatter conversation_template try_register **semantic_func_metadata"),
        (P.native_function, "**native_func_metadata"),
        (P.variable, "name content"),
        (P.Parameter, "name typ sampling_config dispatch_annotation transforms output_type default"),
        (P.DispatchAnnotation, "requests_num_upperbound tokens_num_upperbound ddl_requirement"),
        (P.VirtualMachine, "core_http_addr mode os_http_addr"),
        (P.VirtualMachine.run, "self program timeit args"),
        (P.VirtualMachine.profile, "self program warmups trials args"),
        (P.VirtualMachine.running_scope, "self timeit"),
        (
            P.VirtualMachine.define_function,
            "self func_name func_body params try_register **semantic_func_metadata",
        ),
        (P.VirtualMachine.import_function, "self function_name module_path"),
        (P.VirtualMachine.set_batch, "self latency"),
        (
            P.ConversationTemplate,
            "system_message roles system_template seperator_style sep sep2",
        ),
        (P.PromptFormatter, "replace_pairs"),
    ],
)
def test_signatures_are_the_prototypes(function: Any, expected: str) -> None:
    shown = [
        f"**{p.name}" if p.kind is p.VAR_KEYWORD else p.name
        for p in inspect.signature(function).parameters.values()
    ]
    assert shown == expected.split()


@P.semantic_function(formatter=None)
def ragged(a: P.Input, b: P.Output) -> None:
    """Line one {{a}}
    line two    with spaces\ttab  x
        out     {{b}}
    never seen"""


@pytest.mark.parametrize(
    ("formatter", "expected"),
    [
        # Four blanks in a row and tabs go, wherever they are; breaks become blanks; of blanks one is left.
        (P.standard_formatter, "Line one {{a}} line twowith spacestab x out {{b}}"),
        (P.allowing_newline, "Line one {{a}}\nline twowith spacestab x\nout {{b}}"),
        (P.PyIndentRemover(), "Line one {{a}}\nline twowith spacestab  x\nout {{b}}"),
        (P.SquashIntoOneLine(), "Line one {{a}}     line two    with spaces\ttab  x         out     {{b}}"),
        (P.AlwaysOneSpace(), "Line one {{a}}\n line two with spaces\ttab x\n out {{b}}"),
        (P.PromptFormatter([("one", "two"), ("two", "3")]), None),
    ],
)
def test_formatters_make_the_prototypes_bytes(formatter: Any, expected: str | None) -> None:
    formatted = formatter.transform(ragged).to_template_str()
    if expected is None:  # One pair after the other.
        expected = ragged.to_template_str().replace("one", "3").replace("two", "3")
    assert formatted == expected


def test_runs_of_blanks_are_replaced_in_the_prototypes_order() -> None:
    # 16 at once, then 15, and so on: of 35 there are three left, and then one.
    made = define("a" + 35 * " " + "b{{o}}", "", "o")
    assert P.AlwaysOneSpace().transform(made).to_template_str() == "a b{{o}}"


def test_with_parentheses_it_is_the_prototypes_and_without_it_is_this_sdks() -> None:
    @P.semantic_function()
    def theirs(a: P.Input, b: P.Output) -> None:
        """Two
        lines {{a}}: {{b}} rest"""

    @P.semantic_function
    def ours(a: P.Input, b: P.Output) -> None:
        """Two
        lines {{a}}: {{b}} rest"""

    @P.semantic_function(model="m")
    def ours_too(a: P.Input, b: P.Output) -> None:
        """Two
        lines {{a}}: {{b}} rest"""

    @parrot.semantic_function(remove_pure_fill=False, formatter=None)
    def theirs_under_the_other_name(a: parrot.Input, b: parrot.Output) -> None:
        """Two lines {{a}}: {{b}} rest"""

    assert theirs.to_template_str() == "Two lines {{a}}: {{b}}"
    assert isinstance(ours, parrot.Function)
    assert isinstance(ours_too, parrot.Function)
    assert ours.template == ours_too.template == "Two\nlines {{a}}: {{b}} rest"
    assert theirs_under_the_other_name.to_template_str() == "Two lines {{a}}: {{b}} rest"
    with pytest.raises(TypeError, match="formatter"):
        P.semantic_function(formatter=None, model="m")
    with pytest.raises(TypeError, match="unknown"):
        P.semantic_function(unknown=1)


def test_the_vicuna_template_is_a_conversation_of_vicunas_form() -> None:
    @P.semantic_function(
        conversation_template=P.ConversationTemplate(
            "<system>",
            ["USER", "ASSISTANT"],
            seperator_style=P.SeparatorStyle.ADD_COLON_TWO,
            sep=" ",
            sep2="</s>",
        )
    )
    def talk(a: P.Input, b: P.Output, c: P.Output) -> None:
        """Ask {{a}} {{b}} more {{c}}"""

    assert talk.to_template_str() == (
        "<system> USER: Ask {{a}}  ASSISTANT: {{b}}</s>USER:  more  ASSISTANT: {{c}}</s>"
    )
    assert (
        P.vicuna_template.transform(talk)
        .to_template_str()
        .startswith(
            "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
            "helpful, detailed, and polite answers to the user's questions. USER: <system> "
        )
    )


def test_single_separators_end_every_turn() -> None:
    @P.semantic_function(conversation_template=P.ConversationTemplate("S", ["U", "A"], "[{system_message}]"))
    def talk(a: P.Input, b: P.Output) -> None:
        """Ask {{a}}{{b}}"""

    assert talk.to_template_str() == "[S]\nU: Ask {{a}}\nA: {{b}}\n"


def test_a_users_own_mutator_makes_another_function_and_leaves_the_first() -> None:
    class Shouting(P.FuncMutator):
        def _visit_func(self, func: SemanticFunction) -> SemanticFunction:
            return func

        def _visit_constant(self, constant: Constant) -> Constant:
            return Constant(constant.idx, constant.text.upper())

        def _visit_parameter(self, param: P.Parameter) -> P.Parameter:
            return param

    before = ragged.to_template_str()
    both = P.Sequential([P.allowing_newline, Shouting()])
    assert both.transform(ragged).to_template_str().startswith("LINE ONE {{a}}\nLINE")
    assert ragged.to_template_str() == before


@pytest.mark.parametrize(
    ("template", "pieces"),
    [
        ("say {{ a }} {a} {{a}}: {{b}}", ["say {{ a }} {a} ", "a", ": ", "b"]),
        ("{{{a}}} and {{{{a}}}}: {{b}}", ["{", "a", "} and {{", "a", "}}: ", "b"]),
        ("{{é}} {{1a}} {{a.b}} {{ {{a}}: {{b}}", ["{{é}} {{1a}} {{a.b}} {{ ", "a", ": ", "b"]),
        ('json {"x": {"y": 1}} {{input:a}}: {{output:b}}', ['json {"x": {"y": 1}} ', "a", ": ", "b"]),
        ("quoted {{'{{'}} {{a}}: {{b}}", ["quoted {{'{{'}} ", "a", ": ", "b"]),
    ],
)
def test_what_is_no_hole_to_the_prototype_is_text(template: str, pieces: list[str]) -> None:
    made = define(template, "a", "b")
    assert [p.text if isinstance(p, Constant) else p.param.name for p in made.body] == pieces
    # And in this SDK's grammar, which is what is sent, it stands for the same.
    sent = template_of([p.text if isinstance(p, Constant) else p.param for p in made.body])
    assert [p.text if isinstance(p, Text) else p.name for p in parse(sent)] == pieces


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("say {{c}} {{b}}", "c is not defined"),
        ("{{b}} {{a}}", "comes first"),
        ("{{a}}{{b}}{{c2}}", "c2 is not defined"),
        ("{{a}} {{b}} and {{b}}", "is there twice"),
        ("{{a}}", "'b' has no place"),
        ("{{output:a}} {{b}}", "declared the other way"),
    ],
)
def test_a_template_that_could_never_run_is_refused_when_it_is_defined(template: str, reason: str) -> None:
    with pytest.raises(parrot.PlaceholderError, match=reason):
        define(template, "a", "b")


def test_outputs_that_touch_are_refused_even_where_a_formatter_brought_them_together() -> None:
    with pytest.raises(parrot.PlaceholderError, match="'c' follows another output"):

        @P.semantic_function()
        def touching(a: P.Input, b: P.Output, c: P.Output) -> None:
            """{{a}} {{b}}    {{c}}"""


def test_a_return_annotation_is_refused() -> None:
    def returning(a: P.Input, b: P.Output) -> str:
        """{{a}} {{b}}"""
        return ""

    with pytest.raises(ValueError, match="return annotation"):
        P.semantic_function()(returning)
