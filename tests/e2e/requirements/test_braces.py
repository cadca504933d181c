"""Braces in templates: one written grammar, the same for the SDK and for HTTP."""

from __future__ import annotations

import pytest
from tests.support.rig import BY_TEXT, Rig

import parrot as P

pytestmark = pytest.mark.timeout(120)

TRICKY = (
    'script:braces Reply as {"name": "{{ x }}", "tags": ["a", "b"], "range": "{1,3}"} '
    "and show {{'{{'}}hole}}: {{out}}"
)
SHOWN = (
    'script:braces Reply as {"name": "{{evil}}", "tags": ["a", "b"], "range": "{1,3}"} and show {{hole}}: '
)
WRONG = {
    "unclosed": "one\ntwo {{x {{out}}",
    "never closed": "{{out}} and {{x",
    "empty": "{{}} {{out}}",
    "blank": "{{ }} {{out}}",
    "digit": "{{1x}} {{out}}",
    "accent": "{{é}} {{out}}",
    "dot": "{{a.b}} {{out}}",
    "another word": "{{in:x}} {{out}}",
    "unknown": "{{nobody}} {{out}}",
    "input and output": "{{input:x}} {{output:x}} {{out}}",
}


def submitted(rig: Rig, prompt: str) -> tuple[str, int, dict[str, object]]:
    """Session, status and answer of one call whose holes are `x`, if it is there, and `out`."""
    holes: list[dict[str, str]] = [{"name": "out", "in_out": "out", "semantic_var_id": "out"}]
    if "x" in prompt:
        holes.append({"name": "x", "in_out": "in", "value": "{{evil}}"})
    session = rig.open()
    answer = rig.submit(session, {"model": BY_TEXT, "prompt": prompt, "placeholders": holes})
    return session, answer.status_code, answer.json()


def test_single_braces_are_text_and_a_literal_hole_can_be_shown(rig: Rig) -> None:
    rig.upstreams[BY_TEXT].script("braces", {"text": "fine"})
    session, status, answer = submitted(rig, TRICKY)
    assert status == 201, answer
    assert rig.read(session, "out")["value"] == "fine"
    assert rig.upstreams[BY_TEXT].prompts()[-1] == SHOWN

    def ask(x: P.Input, out: P.Output) -> None: ...

    ask.__doc__ = TRICKY
    with P.Session(rig.up.url):
        assert P.semantic_function(model=BY_TEXT)(ask)("{{evil}}").get(timeout=30) == "fine"
    assert rig.upstreams[BY_TEXT].prompts()[-1] == SHOWN


def test_an_input_may_be_repeated(rig: Rig) -> None:
    rig.upstreams[BY_TEXT].script("thrice", {"text": "fine"})
    session, status, answer = submitted(rig, "script:thrice {{x}}{{ x }}{{input:x}} {{out}}")
    assert status == 201, answer
    assert rig.read(session, "out")["value"] == "fine"
    assert rig.upstreams[BY_TEXT].prompts()[-1] == "script:thrice {{evil}}{{evil}}{{evil}} "


@pytest.mark.parametrize("kind", WRONG)
def test_the_sdk_and_http_refuse_the_same_with_the_place(rig: Rig, kind: str) -> None:
    prompt = WRONG[kind]
    _, status, problem = submitted(rig, prompt)
    assert status == 400
    assert problem["type"] in {
        "urn:parrot:problem:invalid_template",
        "urn:parrot:problem:placeholder_mismatch",
    }
    assert str(problem["field"]).startswith("calls[0].p"), problem

    def ask(x: P.Input, out: P.Output) -> None: ...

    ask.__doc__ = prompt
    with pytest.raises(P.TemplateError) as refused:
        P.semantic_function(ask)
    place = f"line {refused.value.line}, column {refused.value.column}"
    assert refused.value.line > 0
    assert place in str(refused.value)
    assert place in str(problem["detail"])
