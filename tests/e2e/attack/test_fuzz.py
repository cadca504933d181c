"""The whole HTTP surface, from its own description, under attack by one tenant while another one works.

Requests are made up from the OpenAPI document: such as it asks for, and such as break it. Each is aimed: at
what the attacker has, at what the other tenant has, or at nothing. Whatever is sent, the answer comes in
time, is no server's error, and says nothing of the other tenant's.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from typing import Any, Final

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from tests.support.attack import AnyCase, Attack

pytestmark = pytest.mark.timeout(420)

SEED: Final = 20_26
EXAMPLES: Final = 6
"""Requests to each operation in each of the two ways, a third of them aimed at each target."""


def test_no_request_breaks_the_server_or_reaches_another_tenant(
    attack: Attack, subtests: pytest.Subtests
) -> None:
    before = attack.victim.graph()
    described = httpx.get(f"{attack.url}/openapi.json").json()
    for found in schemathesis.openapi.from_dict(described).get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            with subtests.test(operation.label, mode=mode.value):
                _attacked(attack, operation, mode)
    assert attack.victim.graph() == before
    assert httpx.get(f"{attack.url}/readyz").status_code == 200
    # It was no empty storm: something was taken, something refused, and something not found.
    assert {200, 201, 400, 404} <= attack.statuses.keys()


def _attacked(attack: Attack, operation: Any, mode: GenerationMode) -> None:
    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(operation.as_strategy(generation_mode=mode), st.sampled_from(["theirs", "ours", "nobody's"]))
    def attacked(case: AnyCase, aim: str) -> None:
        attack.send(case, aim)

    # Of some operations nothing can be wrong: all they take is an id, which is any text.
    with suppress(Unsatisfiable) if mode is GenerationMode.NEGATIVE else nullcontext():
        attacked()


FOUND: Final[dict[str, tuple[str, str, Any]]] = {
    "a deadline beyond a number of 64 bits, to a reader": (
        "GET",
        "/v1/sessions/{session_id}/variables/out?criteria=deadline&deadline_unix_ms=73745005103367847936",
        None,
    ),
    "the same, to a session": (
        "POST",
        "/v1/sessions",
        {"criteria": {"kind": "deadline", "deadline_unix_ms": 1 << 63}},
    ),
}
"""What was once a server's error."""


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_refused(attack: Attack, name: str) -> None:
    method, path, body = FOUND[name]
    answer = attack.attacker.http.request(method, path.format(**attack.attacker.things), json=body)
    assert answer.status_code == 400
    assert answer.json()["field"]
