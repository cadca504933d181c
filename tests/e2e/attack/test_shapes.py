"""Each place of each body with each value that has no business there: it is never a server's error."""

from __future__ import annotations

import json

import httpx
import pytest
from tests.support.attack import Attack
from tests.support.bodies import VALID, spoilt

pytestmark = pytest.mark.timeout(180)


def request(attack: Attack, name: str, body: bytes) -> httpx.Response:
    """What a body is answered with."""
    method, path, _ = VALID[name]
    url = path.format(**attack.attacker.things)
    headers = {"Content-Type": "application/json"}
    return attack.attacker.http.request(method, url, content=body, headers=headers)


# A call alone has the places of a batch's calls.
@pytest.mark.parametrize("name", sorted(VALID.keys() - {"call"}))
def test_no_value_in_any_place_is_a_servers_error(attack: Attack, name: str) -> None:
    bad = {}
    for what, body in spoilt(VALID[name][2]):
        answer = request(attack, name, body)
        if answer.status_code >= 500:
            bad[what] = (answer.status_code, answer.text[:300])
        elif answer.status_code >= 400:
            told = answer.json()
            assert told.get("error") or {"type", "detail"} <= told.keys(), (what, told)
    assert bad == {}


@pytest.mark.parametrize("name", VALID)
def test_what_is_no_json_is_refused_with_its_reason(attack: Attack, name: str) -> None:
    whole = json.dumps(VALID[name][2]).encode()
    for body in (b"", whole[:-1], whole + b"}", b"\xff\xfe" + whole, b"[]", b"1", b'"x"', b"null", b"\0"):
        answer = request(attack, name, body)
        # A session's body may be left out.
        if name != "session" or body not in {b"", b"null"}:
            assert 400 <= answer.status_code < 500, (body, answer.text)
        assert answer.headers["content-type"].split(";")[0] in {
            "application/json",
            "application/problem+json",
        }
