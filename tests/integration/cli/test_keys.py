"""`parrot keys` and `parrot tenants`, against a real manager."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.manager import ManagerUnderTest, serving
from typer.testing import CliRunner, Result

from parrot_cli.main import app
from parrot_manager.store.memory import MemoryStore
from parrot_runtime.api_keys import parts_of
from parrot_runtime.values.bus import connected

pytestmark = pytest.mark.anyio


@pytest.fixture
async def store() -> MemoryStore:
    """What the manager keeps."""
    return MemoryStore()


@pytest.fixture
async def manager(store: MemoryStore, nats_url: str) -> AsyncIterator[ManagerUnderTest]:
    """A manager."""
    async with connected(nats_url, "test", 5) as bus, serving(store, bus) as made:
        yield made


async def parrot(manager: ManagerUnderTest, *arguments: str) -> Result:
    """What a command prints."""
    command = [*arguments, "--manager-address", manager.address]
    return await asyncio.to_thread(CliRunner().invoke, app, command)


async def test_a_key_is_shown_once_and_only_its_digest_is_kept(
    manager: ManagerUnderTest, store: MemoryStore
) -> None:
    made = await parrot(manager, "keys", "create", "acme", "--label", "laptop")
    assert made.exit_code == 0, made.output
    key = made.stdout.strip()
    parts = parts_of(key)
    assert parts is not None
    kept = await store.tenants.find_key(parts.id)
    assert kept is not None
    assert (kept.tenant, kept.label, kept.digest) == ("acme", "laptop", parts.digest)
    secret = key.split("-", 2)[2]
    assert secret not in repr(kept)
    listed = await parrot(manager, "keys", "list")
    assert secret not in listed.output
    assert all(word in listed.stdout for word in (parts.id, "acme", "laptop", "good"))


async def test_a_key_is_revoked_by_its_id_or_by_itself(manager: ManagerUnderTest) -> None:
    keys = [json.loads((await parrot(manager, "keys", "create", "a", "--json")).stdout) for _ in range(2)]
    for name in (keys[0]["id"], keys[1]["key"]):
        assert (await parrot(manager, "keys", "revoke", name)).exit_code == 0
    listed = json.loads((await parrot(manager, "keys", "list", "--tenant", "a", "--json")).stdout)
    assert [key["state"] for key in listed["keys"]] == ["revoked", "revoked"]
    assert not any("key" in key for key in listed["keys"])
    unknown = await parrot(manager, "keys", "revoke", "nowhere")
    assert (unknown.exit_code, "there is no key 'nowhere'" in unknown.stderr) == (4, True)


async def test_limits_change_one_by_one_and_all_go_at_once(manager: ManagerUnderTest) -> None:
    await parrot(manager, "tenants", "limit", "acme", "--calls", "10", "--tokens-per-minute", "1000")
    told = await parrot(manager, "tenants", "limit", "acme", "--sessions", "3", "--calls", "0", "--json")
    (tenant,) = json.loads(told.stdout)["tenants"]
    assert (tenant["limits"]["calls"], tenant["limits"]["sessions"]) == (None, 3)
    assert tenant["limits"]["tokens_per_minute"] == 1000
    assert tenant["tokens_left_this_minute"] == 1000
    listed = await parrot(manager, "tenants", "list")
    assert "0/3" in listed.stdout
    assert (await parrot(manager, "tenants", "limit", "acme", "--none")).exit_code == 0
    assert json.loads((await parrot(manager, "tenants", "list", "--json")).stdout) == {"tenants": []}


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["tenants", "limit", "acme"], 2, "name at least one limit"),
        (["tenants", "limit", "acme", "--none", "--calls", "1"], 2, "name at least one limit"),
        (["tenants", "limit", "acme", "--calls", "-1"], 2, "--calls"),
        (["keys", "create", "no name"], 4, "tenant is 1 to 64"),
        (["keys", "create", "a", "--label", "x" * 201], 4, "label"),
    ],
)
async def test_what_makes_no_sense_is_refused_with_why(
    manager: ManagerUnderTest, arguments: list[str], code: int, word: str
) -> None:
    told = await parrot(manager, *arguments)
    assert (told.exit_code, word in told.stderr) == (code, True), told.stderr


async def test_who_can_not_be_reached_is_named(tmp_path: Path) -> None:
    runner = CliRunner()
    told = await asyncio.to_thread(
        runner.invoke, app, ["keys", "list", "--manager-address", "127.0.0.1:1,127.0.0.1:2"]
    )
    assert (told.exit_code, "127.0.0.1:1,127.0.0.1:2" in told.stderr) == (3, True)
    told = await asyncio.to_thread(runner.invoke, app, ["keys", "list", "--data-dir", str(tmp_path)])
    assert (told.exit_code, "--manager-address" in told.stderr) == (3, True)
