"""What operators ask of the managers themselves: the commands that make keys and set limits.

Whoever reaches a manager's address may do so: that address belongs in no network but the servers' own.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parrot_cli.datadir import announced_managers, default_data_dir
from parrot_cli.failing import PROBLEM, REFUSED, UNREACHABLE, CommandError

if TYPE_CHECKING:
    from parrot_runtime.errors import Fault

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
        for address in rpc.addresses_of(self._address):
            with grpc.insecure_channel(address, options=rpc.OPTIONS) as channel:
                stub: Any = TenantServiceStub(channel)
                try:
                    return getattr(stub, method)(request, timeout=ASK_S)
                except grpc.RpcError as error:
                    fault = rpc.fault_of(error, "manager")  # type: ignore[arg-type]
            if fault.kind is not errors.UNAVAILABLE:
                break
        raise self._refusal(fault)

    def _refusal(self, fault: Fault | None) -> CommandError:
        from parrot_runtime import errors

        if fault is None or fault.kind is errors.UNAVAILABLE:
            return CommandError(f"no manager can be reached at {self._address}; is it running?", UNREACHABLE)
        problem = {"type": PROBLEM + fault.kind.type, "detail": fault.message, "field": fault.field}
        return CommandError(fault.message, REFUSED, problem)
