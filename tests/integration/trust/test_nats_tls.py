"""The bus with certificates and passwords: who is let in, and what the others are told."""

from __future__ import annotations

import re
import shutil
import ssl
from typing import Any

import pytest
from tests.support.certificates import Authority, Files
from tests.support.guarded_nats import tls_url
from tests.support.manager import eventually
from tests.support.nats import temporary_nats

from parrot_runtime import tls as tls_module
from parrot_runtime.errors import Fault
from parrot_runtime.tls import Tls
from parrot_runtime.values.bus import Bus, connected

pytestmark = pytest.mark.anyio
SUBJECT = "sv.delta.00.default.test"


def demanding(files: Files, more: str = "") -> str:
    """A server's configuration by which clients show certificates."""
    return (
        f'tls {{ cert_file: "{files.cert}", key_file: "{files.key}", ca_file: "{files.ca}", '
        f"verify: true, {more} }}\n"
    )


async def refusal(url: str, tls: Tls | None) -> str:
    """What is said to a service that is not let in."""
    said = ""
    for try_s in (0.7, 5, 20):
        with pytest.raises(Fault) as caught:
            async with connected(url, "test", try_s, tls=tls):
                raise AssertionError("it was let in")
        said = caught.value.message
        if f"(waited {try_s:g} s)" not in said:
            # On a busy machine even that takes its time.
            break
    return said


async def speaks_tls(bus: Bus) -> bool:
    """Whether what goes over a bus's connection is enciphered."""
    transport: Any = bus.client._transport
    return isinstance(transport._io_writer.get_extra_info("ssl_object"), ssl.SSLObject)


@pytest.fixture
def time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates expire while they are in use; with one that has, no service starts."""
    monkeypatch.setattr(tls_module, "_TOO_LATE_OR_EARLY", frozenset())


async def test_who_shows_a_certificate_of_the_authority_is_let_in(authority: Authority) -> None:
    with temporary_nats(demanding(authority.issue("127.0.0.1", "nats"))) as server:
        tls = authority.issue("engine").tls()
        async with connected(tls_url(server), "test", 5, tls=tls) as bus:
            assert await speaks_tls(bus)
            await bus.js.publish(SUBJECT, b"x")


@pytest.mark.usefixtures("time_passes")
async def test_who_has_no_good_certificate_is_refused_and_told_why(
    authority: Authority, stranger: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    with temporary_nats(demanding(authority.issue("127.0.0.1"))) as server:
        url = tls_url(server)
        assert "unable to get local issuer" in await refusal(url, None)
        foreign = stranger.issue("engine", believing=authority).tls()
        expired = authority.issue("engine", expired=True).tls()
        assert "it does not know the authority of this service's certificate" in await refusal(url, foreign)
        assert re.search("this service's certificate.* expired", await refusal(url, expired))
    with temporary_nats(demanding(authority.issue("127.0.0.1"))) as server:
        # Whose authority a client goes by is no matter of the server's.
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.issue("other").ca))
        assert "it wants a certificate, and was shown none" in await refusal(tls_url(server), None)


@pytest.mark.parametrize(
    ("names", "expired", "why"),
    [
        (("localhost",), False, "its certificate is not believed: IP address mismatch"),
        (("127.0.0.1",), True, "its certificate is not believed: certificate has expired"),
    ],
)
async def test_a_server_without_a_good_certificate_is_not_spoken_to(
    authority: Authority, names: tuple[str, ...], expired: bool, why: str
) -> None:
    with temporary_nats(demanding(authority.issue(*names, as_file="nats", expired=expired))) as server:
        assert why in await refusal(tls_url(server), authority.issue("engine").tls())


async def test_a_server_of_another_authority_is_not_spoken_to(
    authority: Authority, stranger: Authority
) -> None:
    with temporary_nats(demanding(stranger.issue("127.0.0.1", believing=authority))) as server:
        said = await refusal(tls_url(server), authority.issue("engine").tls())
        assert "its certificate is not believed: unable to get local issuer" in said


async def test_a_server_that_speaks_no_tls_is_told_nothing_where_tls_is_asked_for(
    authority: Authority, nats_url: str
) -> None:
    url = nats_url.replace("nats://", "tls://engine:secret@")
    said = await refusal(url, authority.issue("engine").tls())
    assert "it speaks no TLS, and tls:// asks for it" in said
    assert "secret" not in said


async def test_tls_is_spoken_where_a_server_only_allows_it(authority: Authority) -> None:
    # So a bus goes over to TLS without a break: the server, the services, and then the server's allowance.
    configuration = demanding(authority.issue("127.0.0.1")) + "allow_non_tls: true\n"
    with temporary_nats(configuration) as server:
        async with connected(server.url, "test", 5) as bus:
            assert not await speaks_tls(bus)
        async with connected(tls_url(server), "test", 5, tls=authority.issue("engine").tls()) as bus:
            assert await speaks_tls(bus)


async def test_a_new_certificate_is_taken_up_when_the_bus_is_reached_anew(
    authority: Authority, stranger: Authority
) -> None:
    of_server, of_engine = authority.issue("127.0.0.1"), authority.issue("engine")
    configuration = demanding(of_server)
    with temporary_nats(configuration) as server:
        async with connected(tls_url(server), "test", 5, tls=of_engine.tls()) as bus:
            for old, new in (
                (of_server, stranger.issue("127.0.0.1")),
                (of_engine, stranger.issue("engine")),
            ):
                for path, by in ((old.cert, new.cert), (old.key, new.key), (old.ca, new.ca)):
                    shutil.copy(by, path)
            server.reload(configuration)
            later = of_engine.tls()

            async def taken_up() -> bool:
                try:
                    async with connected(tls_url(server), "later", 1, tls=later):
                        return True
                except Fault:
                    return False

            await eventually(taken_up, within_s=20)
            # What stood stays, and when it is reached anew, goes by the new ones.
            assert await _published(bus)
            server.kill()
            server.start()

            async def back() -> bool:
                return bool(bus.client.is_connected and await _published(bus))

            await eventually(back, within_s=20)


async def _published(bus: Bus) -> bool:
    try:
        await bus.js.publish(SUBJECT, b"x", timeout=1)
    except (OSError, RuntimeError, TimeoutError):
        return False
    return True


def users(password: str) -> str:
    """A server's configuration with one user."""
    return f'authorization {{ users: [ {{user: engine, password: "{password}"}} ] }}\n'


async def test_a_password_is_asked_for_and_is_never_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with temporary_nats(users("right/1")) as server:
        url = server.url.replace("://", "://engine:{}@")
        async with connected(url.format("right%2F1"), "test", 5) as bus:
            await bus.js.publish(SUBJECT, b"x")
        for wrong in (url.format("wrong-1"), server.url):
            said = await refusal(wrong, None)
            assert "Authorization Violation" in said
            assert "wrong-1" not in said
    assert "right%2F1" not in capsys.readouterr().err


async def test_a_password_does_no_harm_where_none_is_asked_for(nats_url: str) -> None:
    async with connected(nats_url.replace("://", "://engine:secret@"), "test", 5) as bus:
        assert await _published(bus)


async def test_a_service_that_was_shut_out_comes_back_when_it_is_let_in_again() -> None:
    with temporary_nats(users("first")) as server:
        async with connected(server.url.replace("://", "://engine:first@"), "test", 5) as bus:
            server.reload(users("second"))

            async def shut_out() -> bool:
                return not bus.client.is_connected

            await eventually(shut_out, within_s=20)
            assert not bus.client.is_closed
            server.reload(users("first"))

            async def back() -> bool:
                return bool(bus.client.is_connected and await _published(bus))

            await eventually(back, within_s=20)
