"""What operators ask of the managers themselves: the commands that make keys and set limits.

Whoever reaches a manager's address may do so: that address belongs in no network but the servers' own.
Where managers have certificates, the operator needs one too, of the name `operator`: its files are named
by the same variables as a service's (PARROT_TLS_CERT, PARROT_TLS_KEY, PARROT_TLS_CA).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parrot_cli.datadir import announced_managers, default_data_dir
from parrot_cli.failing import PROBLEM, REFUSED, UNREACHABLE, WRONG_USE, CommandError

if TYPE_CHECKING:
    from parrot_runtime.errors import Fault
    from parrot_runtime.tls import Tls

ASK_S: Final = 60.0
"""Counting what a tenant has stored may take long."""

ManagerAddress = Annotated[
    str,
    typer.Option(
        "--manager-address",
        envvar="PARROT_MANAGER_ADDRESS",
        metavar="HOST:PORT",
        help="A manager, or several with commas; by default those of the `parrot up` of --data-dir.",
    ),
]
DataFolder = Annotated[
    Path | None,
    typer.Option(
        "--data-dir", help="Of the `parrot up` that is meant.", show_default=str(default_data_dir())
    ),
]


class Operator:
    """Asks whichever manager answers."""

    def __init__(self, manager_address: str, data_dir: Path | None) -> None:
        folder = data_dir or default_data_dir()
        self._address = manager_address or announced_managers(folder)
        if not self._address:
            raise CommandError(
                f"no `parrot up` has run in {folder}; name a manager with --manager-address", UNREACHABLE
            )

    def ask(self, method: str, request: Any) -> Any:
        """The answer to a request of the TenantService.

        Raises:
            CommandError: no manager can be reached, or what is asked is refused.
        """
        import grpc

        from parrot_proto.manager.v1.tenants_pb2_grpc import TenantServiceStub
        from parrot_runtime import errors, rpc

        fault: Fault | None = None
        tls = _tls()
        for address in rpc.addresses_of(self._address):
            with rpc.blocking_channel(address, tls) as channel:
                stub: Any = TenantServiceStub(channel)
                try:
                    return getattr(stub, method)(request, timeout=ASK_S)
                except grpc.RpcError as error:
                    fault = rpc.fault_of(error, "manager")  # type: ignore[arg-type]
            if fault.kind is not errors.UNAVAILABLE:
                break
        raise self._refusal(fault, tls)

    def _refusal(self, fault: Fault | None, tls: Tls | None) -> CommandError:
        from parrot_runtime import errors, rpc
        from parrot_runtime.tls_trouble import look

        if fault is None or fault.kind is errors.UNAVAILABLE:
            whys = (look(address, tls) for address in rpc.addresses_of(self._address))
            why = next(filter(None, whys), "is it running?")
            return CommandError(f"no manager can be reached at {self._address}; {why}", UNREACHABLE)
        problem = {"type": PROBLEM + fault.kind.type, "detail": fault.message, "field": fault.field}
        return CommandError(fault.message, REFUSED, problem)


def _tls() -> Tls | None:
    """The operator's certificate, if one is named.

    Raises:
        CommandError: its files can't be used.
    """
    from parrot_runtime.errors import Fault
    from parrot_runtime.settings import ServiceSettings
    from parrot_runtime.tls import Tls

    try:
        return Tls.of(ServiceSettings.load([]))
    except Fault as fault:
        raise CommandError(fault.message, WRONG_USE) from None
