"""`parrot keys` with certificates: an operator's makes keys, and no other."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.certificates import Authority, Files
from tests.support.tls_manager import manager
from typer.testing import CliRunner, Result

from parrot_cli.main import app

pytestmark = pytest.mark.anyio


async def create(address: str, files: Files | None) -> Result:
    """What `parrot keys create` does, with a certificate."""
    found = files.settings() if files is not None else {}
    variables = {f"PARROT_{name.upper()}": path for name, path in found.items()}
    command = ["keys", "create", "acme", "--manager-address", address]
    return await asyncio.to_thread(CliRunner(env=variables).invoke, app, command)


async def test_only_an_operator_s_certificate_makes_keys_and_who_has_another_is_told(
    authority: Authority,
) -> None:
    async with manager(authority.issue("manager").tls()) as address:
        made = await create(address, authority.issue("operator"))
        assert (made.exit_code, made.stdout.startswith("pk-")) == (0, True), made.output
        refused = await create(address, authority.issue("gateway"))
        assert refused.exit_code == 4
        assert (
            "the caller's certificate has the names gateway; CreateKey is for one with the name operator"
            in refused.stderr
        )
        bare = await create(address, None)
        assert (bare.exit_code, "it speaks TLS, and this one does not" in bare.stderr) == (3, True), (
            bare.output
        )


async def test_files_that_can_t_be_used_are_a_mistake_of_the_command_s(authority: Authority) -> None:
    files = authority.issue("operator")
    files.key.unlink()
    done = await create("127.0.0.1:1", files)
    assert (done.exit_code, "--tls-key" in done.stderr) == (2, True), done.output
