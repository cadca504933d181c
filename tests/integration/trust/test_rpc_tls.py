"""gRPC with certificates: the right peer is let in, every other one is not, and it is told why."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography.hazmat.primitives import serialization
from grpc import aio
from tests.support.certificates import Authority, Files
from tests.support.tls_manager import manager

from parrot_gateway.managers import Managers
from parrot_manager.callers import ALLOWED
from parrot_manager.settings import ManagerSettings
from parrot_proto.engine.v1 import engine_pb2, engine_pb2_grpc
from parrot_proto.manager.v1 import manager_pb2, manager_pb2_grpc, tenants_pb2, tenants_pb2_grpc
from parrot_runtime import errors, rpc
from parrot_runtime import tls as tls_module
from parrot_runtime.errors import Fault
from parrot_runtime.tls import Tls
from parrot_runtime.tls_trouble import why_not

pytestmark = pytest.mark.anyio


async def ask(channel: aio.Channel) -> None:
    """Asks for the models; raises the `Fault`."""
    try:
        await manager_pb2_grpc.ManagerServiceStub(channel).ListModels(
            manager_pb2.ListModelsRequest(), timeout=5
        )
    except aio.AioRpcError as error:
        raise rpc.fault_of(error, "manager") from None


async def answered(address: str, tls: Tls | None) -> bool:
    """Whether a client with these files hears an answer."""
    async with rpc.channel(address, tls) as channel:
        try:
            await ask(channel)
        except Fault as fault:
            return fault.kind is not errors.UNAVAILABLE
        return True


@pytest.fixture
def time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Certificates expire while they are in use; with one that has, no service starts."""
    monkeypatch.setattr(tls_module, "_TOO_LATE_OR_EARLY", frozenset())


@pytest.fixture
def of_manager(authority: Authority) -> Files:
    return authority.issue("manager")


async def test_a_gateway_s_certificate_is_let_in_whatever_the_address(
    authority: Authority, of_manager: Files
) -> None:
    async with manager(of_manager.tls()) as address:
        tls = authority.issue("gateway").tls()
        assert await answered(address, tls)
        await rpc.wait_any_ready([address], "manager", 5, tls)
        assert await why_not(address, tls) == ""


@pytest.mark.usefixtures("time_passes")
async def test_who_has_no_good_certificate_is_refused_and_told_why(
    authority: Authority, stranger: Authority, of_manager: Files
) -> None:
    clients = {
        "it speaks TLS, and this one does not": None,
        "it hangs up on this one's certificate: unable to get local issuer": stranger.issue(
            "gateway", believing=authority
        ).tls(),
        "it hangs up on this one's certificate: certificate has expired": authority.issue(
            "gateway", expired=True
        ).tls(),
    }
    async with manager(of_manager.tls()) as address:
        for why, tls in clients.items():
            assert not await answered(address, tls)
            with pytest.raises(Fault, match=why):
                await rpc.wait_any_ready([address], "manager", 0.3, tls)


@pytest.mark.usefixtures("time_passes")
@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ({"names": ("gateway",)}, "its certificate is not believed: Hostname mismatch"),
        (
            {"names": ("manager",), "expired": True},
            "its certificate is not believed: certificate has expired",
        ),
    ],
)
async def test_a_manager_without_a_manager_s_good_certificate_is_not_asked(
    authority: Authority, shown: dict[str, Any], why: str
) -> None:
    files = authority.issue(*shown["names"], as_file="server", expired=shown.get("expired", False))
    tls = authority.issue("gateway").tls()
    async with manager(files.tls()) as address:
        assert not await answered(address, tls)
        assert (await why_not(address, tls)).startswith(why)


async def test_a_manager_of_another_authority_is_not_asked(authority: Authority, stranger: Authority) -> None:
    tls = authority.issue("gateway").tls()
    async with manager(stranger.issue("manager", believing=authority).tls()) as address:
        assert not await answered(address, tls)
        assert "its certificate is not believed: unable to get local issuer" in await why_not(address, tls)


async def test_a_manager_of_plain_text_is_not_asked(authority: Authority) -> None:
    tls = authority.issue("gateway").tls()
    async with manager(None) as address:
        assert await answered(address, None)
        assert not await answered(address, tls)
        with pytest.raises(Fault, match="it speaks no TLS, and this one does"):
            await rpc.wait_any_ready([address], "manager", 0.3, tls)


async def create_key(channel: aio.Channel) -> None:
    await tenants_pb2_grpc.TenantServiceStub(channel).CreateKey(tenants_pb2.CreateKeyRequest(), timeout=5)


async def attach(channel: aio.Channel) -> None:
    stub: Any = engine_pb2_grpc.EngineControlServiceStub(channel)
    stream = stub.Attach(timeout=5)
    await stream.write(engine_pb2.AttachRequest())
    assert (await stream.read()).WhichOneof("command") == "registered"


async def list_models(channel: aio.Channel) -> None:
    await manager_pb2_grpc.ManagerServiceStub(channel).ListModels(manager_pb2.ListModelsRequest(), timeout=5)


@pytest.mark.parametrize(
    ("names", "may"),
    [
        (("gateway",), {"list_models"}),
        (("engine",), {"attach"}),
        (("operator",), {"list_models", "create_key"}),
        (("gateway", "engine"), {"list_models", "attach"}),
        (("manager", "nats", "gateway.example"), set()),
    ],
)
async def test_a_client_s_names_decide_what_it_may_call(
    authority: Authority, of_manager: Files, names: tuple[str, ...], may: set[str]
) -> None:
    done = set()
    refusals = []
    async with (
        manager(of_manager.tls()) as address,
        rpc.channel(address, authority.issue(*names, as_file="client").tls()) as channel,
    ):
        for call in (list_models, create_key, attach):
            try:
                await call(channel)
            except aio.AioRpcError as error:
                refusals.append((error.code(), rpc.fault_of(error, "manager")))
            else:
                done.add(call.__name__)
    assert done == may
    assert all(code is grpc.StatusCode.PERMISSION_DENIED for code, _ in refusals)
    assert all(fault.kind is errors.FORBIDDEN and names[0] in fault.message for _, fault in refusals)


async def test_every_method_is_somebody_s() -> None:
    files = (manager_pb2, tenants_pb2, engine_pb2)
    methods = {
        f"/{service.full_name}/{method.name}"
        for file in files
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert methods <= {method for allowed in ALLOWED.values() for method in allowed}


async def test_a_new_certificate_is_taken_up_while_the_server_runs(
    authority: Authority, stranger: Authority, of_manager: Files
) -> None:
    newcomer = stranger.issue("gateway").tls()
    async with (
        manager(of_manager.tls()) as address,
        rpc.channel(address, authority.issue("gateway").tls()) as standing,
    ):
        await ask(standing)
        assert not await answered(address, newcomer)
        await asyncio.to_thread(_exchange, of_manager, stranger.issue("manager"))
        assert await answered(address, newcomer)
        # What stands was let in, and stays.
        await ask(standing)
        assert not await answered(address, authority.issue("gateway").tls())


async def test_a_gateway_goes_by_its_new_certificate_when_the_old_one_is_believed_no_more(
    authority: Authority, stranger: Authority, of_manager: Files
) -> None:
    files = authority.issue("gateway")
    async with manager(of_manager.tls()) as address:
        managers = Managers([address], 20, files.tls())
        await managers.ask("ListModels", manager_pb2.ListModelsRequest(), 20, shard=None)
    for old, new in ((of_manager, stranger.issue("manager")), (files, stranger.issue("gateway"))):
        await asyncio.to_thread(_exchange, old, new)
    async with manager(of_manager.tls(), address):
        await managers.ask("ListModels", manager_pb2.ListModelsRequest(), 20, shard=None)
        await managers.close()


async def test_a_gateway_that_managers_take_for_another_is_unavailable_and_says_no_more(
    authority: Authority, of_manager: Files
) -> None:
    async with manager(of_manager.tls()) as address:
        managers = Managers([address], 0, authority.issue("engine").tls())
        with pytest.raises(Fault) as caught:
            await managers.ask("ListModels", manager_pb2.ListModelsRequest(), 5, shard=None)
        await managers.close()
    assert caught.value.kind is errors.UNAVAILABLE
    assert caught.value.message == "the managers refuse this gateway; its log says why"


async def test_files_that_do_not_fit_are_not_taken_up(authority: Authority, of_manager: Files) -> None:
    tls = of_manager.tls()
    before = tls.current()
    of_manager.key.write_bytes(authority.issue("other").key.read_bytes())
    assert tls.current() is before
    of_manager.key.unlink()
    assert tls.current() is before
    _exchange(of_manager, authority.issue("manager", as_file="new"))
    assert tls.current() is not before
    assert tls.current() is tls.current()


async def test_nobody_starts_with_files_that_can_t_be_used(authority: Authority, tmp_path: Path) -> None:
    good, other = authority.issue("gateway"), authority.issue("engine")
    text = tmp_path / "text"
    text.write_text("no certificate")
    locked = tmp_path / "locked"
    key = serialization.load_pem_private_key(good.key.read_bytes(), None)
    sealed = serialization.BestAvailableEncryption(b"password")
    locked.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, sealed)
    )
    wrong = {
        "certificate has expired; put a new one there": authority.issue("old", expired=True),
        "are no certificate and its key": replace(good, key=other.key),
        r"without a password \(the key has a password": replace(good, key=locked),
        "--tls-ca .*/text holds no certificate in PEM": replace(good, ca=text),
        r"--tls-key .*/none can't be read \(No such file": replace(good, key=tmp_path / "none"),
    }
    for why, files in wrong.items():
        with pytest.raises(Fault, match=why):
            files.tls()


def test_two_of_the_three_files_are_not_enough(
    authority: Authority, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        ManagerSettings.load(authority.issue("manager").flags()[:4])
    assert capsys.readouterr().err == (
        "Value error, --tls-cert, --tls-key, --tls-ca are given together, or none of them; --tls-ca is not\n"
    )


def _exchange(old: Files, new: Files) -> None:
    for path, by in ((old.cert, new.cert), (old.key, new.key), (old.ca, new.ca)):
        path.write_bytes(by.read_bytes())
