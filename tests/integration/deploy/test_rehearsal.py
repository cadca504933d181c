"""A short rehearsal: the manifests' pods on hosts that are namespaces, of which one is cut off."""

from __future__ import annotations

import pytest
from deploy.rehearsal import steps
from deploy.rehearsal.__main__ import Options, rehearse
from deploy.rehearsal.network import NoNamespaces, check
from tests.support.up import data_folder

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(400)]
OUTAGE_S = 5.0
"""Longer than a manager's lease."""


@pytest.fixture(autouse=True)
def _namespaces() -> None:
    try:
        check()
    except NoNamespaces as error:
        pytest.skip(str(error))


async def test_no_application_is_lost_when_a_host_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "OUTAGE_S", OUTAGE_S)
    (cut,) = (step for step in steps.STEPS if step.name == "cut")
    with data_folder() as folder:
        found = await rehearse(Options(steps=[cut], calm_s=0.5, at_once=3), folder)
    assert found["losses"] == []
    (step,) = found["steps"]
    assert step["during"]["runs"] > 0
    assert step["took_s"] >= OUTAGE_S
    assert found["restarts"] == []
