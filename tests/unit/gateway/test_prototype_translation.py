"""The prototype's calls in the gateway: ids any gateway reads, any template answered, errors in its words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from parrot_gateway.compiling import compile_calls
from parrot_gateway.prototype.calls import translate
from parrot_gateway.prototype.errors import is_prototype
from parrot_gateway.prototype.identity import (
    is_settable,
    name_in,
    named_id,
    number_of,
    session_id_of,
    settable_id,
)
from parrot_gateway.prototype.shapes import NewPrototypeCall
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.ids import is_id, new_session_id, new_variable_id
from parrot_runtime.ids import session_id_of as keyed_session_id

T = TypeVar("T")
PIECES = ["{{a}}", "{{b}}", "{{o}}", "{{q}}", "{{ a }}", "{{", "}}", "{", "}", "{{'", "'}}", "{{input:a}}"]
PIECES += ["text ", "\n", "é"]


def outcome(work: Callable[[], T]) -> T | Fault:
    """What comes of it."""
    try:
        return work()
    except Fault as fault:
        return fault


@given(st.one_of(st.builds(new_session_id), st.builds(keyed_session_id, st.text(), st.text())))
def test_a_sessions_number_stands_for_its_id_on_any_gateway(session_id: str) -> None:
    assert session_id_of(str(number_of(session_id))) == session_id
    assert session_id_of(session_id) == session_id


@given(st.one_of(st.text(), st.integers().map(str)))
def test_what_is_no_session_is_not_found(name: str) -> None:
    found = outcome(lambda: session_id_of(name))
    if isinstance(found, Fault):
        assert found.kind.http == 404
    else:
        assert name in {found, name[: len(name) - len(name.lstrip("0"))] + str(number_of(found)).lstrip("0")}


@given(st.text(max_size=80))
def test_an_id_is_one_whatever_name_it_is_to_tell(name: str) -> None:
    for made in (named_id(new_variable_id(), name), settable_id(new_variable_id(), name)):
        assert is_id(made)
        assert name_in(made) in {"", name}
        assert is_settable(made) == made.startswith("set-")


def parameter(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "is_output": name in "oq", **({} if name in "oq" else {"value": name}), **more}


@given(
    st.lists(st.sampled_from(PIECES), max_size=12).map("".join),
    st.lists(st.sampled_from("aboq"), max_size=4),
    st.booleans(),
)
def test_any_template_is_compiled_as_the_prototype_reads_it_or_refused(
    template: str, names: list[str], cut: bool
) -> None:
    parameters: list[Any] = [parameter(name) for name in names]
    sent = NewPrototypeCall(session_id="1", template=template, parameters=parameters, remove_pure_fill=cut)
    translated = outcome(lambda: translate(sent, "", ""))
    if isinstance(translated, Fault):
        assert translated.kind.http == 400
        return
    segments = compile_calls(translated.batch).calls[0].segments
    shown = "".join(s.text or "{{" + (s.input.name or s.output.name) + "}}" for s in segments)
    whole = template.replace("{{input:a}}", "{{a}}")
    assert whole.startswith(shown)
    assert cut or shown == whole
    assert [hole.name for hole in translated.holes] == [
        s.input.name or s.output.name for s in segments if not s.text
    ]


def test_what_the_manager_refuses_is_told_in_the_requests_words() -> None:
    sent = NewPrototypeCall.model_validate(
        {
            "session_id": 7,
            "template": "{{a}} {{b}} {{o}} {{cut}}",
            "parameters": [
                parameter("cut"),
                parameter("o", sampling_config={"max_gen_length": 3}),
                parameter("b", value=None, var_id="x"),
                parameter("a"),
            ],
        }
    )
    translated = translate(sent, "", "")
    for told, field in [
        ("calls[0].placeholders[1].semantic_var_id", "parameters[2].var_id"),
        ("calls[0].placeholders[0].sampling.max_tokens", "parameters[1].sampling_config.max_gen_length"),
        ("calls[0].placeholders[0].sampling.stop[0]", "parameters[1].sampling_config.stop_str[0]"),
        ("variables[0].value", "parameters[3].value"),
        ("calls[0].prompt", "template"),
        ("calls[0].name", "func_name"),
        ("calls[0].model", "models"),
        ("Idempotency-Key", "Idempotency-Key"),
    ]:
        fault = translated.relocated(Fault(errors.INVALID_REQUEST, f"{told}: is wrong", field=told))
        assert (fault.field, fault.message) == (field, f"{field}: is wrong")


def test_an_id_made_under_a_key_is_the_same_again() -> None:
    parameters: list[Any] = [parameter("a"), parameter("o")]
    sent = NewPrototypeCall(session_id="1", template="{{a}} {{o}}", parameters=parameters)
    first, again, other = (translate(sent, "", key).variable_ids for key in ("k", "k", "l"))
    assert first == again
    assert not set(first.values()) & set(other.values())


@pytest.mark.parametrize("session_id", [None, True, [1], {"a": 1}, 1.5])
def test_a_session_is_named_by_an_integer_or_a_text(session_id: object) -> None:
    with pytest.raises(ValidationError):
        NewPrototypeCall.model_validate({"session_id": session_id, "template": "a"})


def test_its_paths_are_known_by_their_first_part() -> None:
    for path in (
        "/v1/session",
        "/v1/session/1",
        "/v1/semantic_var/x",
        "/v1/semantic_call",
        "/v1/py_native_call",
    ):
        assert is_prototype(path)
    for path in ("/v1/sessions", "/v1/sessions/session", "/session", "/v1", "/", "", "/v2/session"):
        assert not is_prototype(path)
