"""Postgres by TLS: a manager with its certificate is let in, every other one is not, and is told why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.certificates import Authority, Files
from tests.support.manager import eventually
from tests.support.roles import with_roles
from tests.support.tls_postgres import TlsPostgres, needs_tls_postgres, tls_postgres

from parrot_manager.store import schema
from parrot_manager.store.postgres import opened
from parrot_runtime.errors import Fault

pytestmark = [pytest.mark.anyio, needs_tls_postgres]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> Iterator[TlsPostgres]:
    with tls_postgres(authority.issue("127.0.0.1", "postgres")) as made:
        yield made


@pytest.fixture
def database(server: TlsPostgres) -> Iterator[str]:
    """A database with the roles in it."""
    url = server.new_database()
    with_roles(server, url)
    yield url
    server.drop_database(url)


async def refusal(url: str) -> str:
    """What is said to one that is not let in."""
    said = ""
    for try_s in (0.5, 5, 20):
        with pytest.raises(Fault) as caught:
            await schema.check(url, try_s)
        said = caught.value.message
        if "(no answer)" not in said:
            # On a busy machine even that takes its time.
            break
    return said


async def test_a_manager_works_over_tls_by_its_certificate_alone(
    server: TlsPostgres, authority: Authority, database: str
) -> None:
    await schema.migrate(server.tls_url(database, "owner", authority.issue("owner")), 10)
    url = server.tls_url(database, "manager", authority.issue("manager"))
    await schema.check(url, 5)
    async with opened(url, 5) as store:
        assert await store.find_live([0], 0) == []


async def test_who_has_no_good_certificate_of_its_role_is_refused_and_told_why(
    server: TlsPostgres, authority: Authority, database: str, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path)
    good = authority.issue("manager")
    unshown = server.tls_url(database, "manager", None, "require")
    assert "requires a valid client certificate" in await refusal(unshown)
    assert "no encryption" in await refusal(server.tls_url(database, "manager", None, "disable"))
    assert "certificate authentication failed" in await refusal(server.tls_url(database, "owner", good))
    foreign = stranger.issue("manager", believing=authority)
    assert "does not know the authority" in await refusal(server.tls_url(database, "manager", foreign))
    expired = authority.issue("manager", as_file="expired", expired=True)
    assert "certificate has expired" in await refusal(server.tls_url(database, "manager", expired))


async def test_a_server_of_another_authority_or_name_is_not_spoken_to(
    server: TlsPostgres, authority: Authority, database: str, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path)
    other = stranger.issue("manager")
    unbelieving = Files(authority.issue("manager").cert, authority.issue("manager").key, other.ca)
    said = await refusal(server.tls_url(database, "manager", unbelieving))
    assert "its certificate is not believed: self-signed certificate in certificate chain" in said
    url = server.tls_url(database, "manager", authority.issue("manager")).replace("127.0.0.1", "localhost")
    assert "Hostname mismatch" in await refusal(url)


async def test_new_certificates_are_taken_up_by_what_connects_anew(
    server: TlsPostgres, authority: Authority, database: str, tmp_path: Path
) -> None:
    mine = authority.issue("manager")
    url = server.tls_url(database, "manager", mine)
    await schema.migrate(server.tls_url(database, "owner", authority.issue("owner")), 10)
    later = Authority(tmp_path)
    try:
        async with opened(url, 5) as store:
            await store.find_live([0], 0)
            server.certify(later.issue("127.0.0.1"))
            new = later.issue("manager")
            for old, by in ((mine.cert, new.cert), (mine.key, new.key), (mine.ca, new.ca)):
                old.write_bytes(by.read_bytes())
            # What stands stays.
            await store.find_live([0], 0)

            async def connects() -> bool:
                try:
                    await schema.check(url, 2)
                except Fault:
                    return False
                return True

            await eventually(connects, within_s=20)
    finally:
        server.certify(authority.issue("127.0.0.1", "postgres"))
