"""`parrot keys`: API keys are made, listed and revoked."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from parrot_cli.failing import reporting, wrong_use
from parrot_cli.operating import DataFolder, ManagerAddress, Operator
from parrot_cli.screen import print_json, print_table
from parrot_cli.server import AsJson

if TYPE_CHECKING:
    from parrot_proto.manager.v1 import tenants_pb2 as pb

keys = typer.Typer(no_args_is_help=True, help="API keys of tenants.")

COLUMNS: Final = ("ID", "TENANT", "STATE", "CREATED", "LABEL")

TenantName = Annotated[str, typer.Argument(metavar="TENANT", help="1 to 64 of A-Z, a-z, 0-9, '_' and '-'.")]


@keys.command()
def create(
    tenant: TenantName,
    label: Annotated[str, typer.Option(help="What it is for; for people.")] = "",
    manager_address: ManagerAddress = "",
    data_dir: DataFolder = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Makes a key for a tenant and prints it, this once: only a digest of it is kept."""
    from parrot_proto.manager.v1 import tenants_pb2
    from parrot_runtime.api_keys import new_api_key, parts_of

    with reporting("keys create", as_json=as_json):
        key = new_api_key()
        parts = parts_of(key)
        if parts is None:
            raise AssertionError("a new key is a key")
        request = tenants_pb2.CreateKeyRequest(tenant=tenant, id=parts.id, digest=parts.digest, label=label)
        made: pb.Key = Operator(manager_address, data_dir).ask("CreateKey", request).key
        if as_json:
            print_json({**_shown(made), "key": key})
        else:
            sys.stdout.write(f"{key}\n")
            sys.stderr.write(f"key {made.id} of tenant {made.tenant}; it is not shown again\n")


@keys.command("list")
def list_keys(
    tenant: Annotated[str, typer.Option(help="Only this tenant's.")] = "",
    manager_address: ManagerAddress = "",
    data_dir: DataFolder = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Lists keys, revoked ones too; the newest last."""
    from parrot_proto.manager.v1 import tenants_pb2

    with reporting("keys list", as_json=as_json):
        request = tenants_pb2.ListKeysRequest(tenant=tenant)
        found = [_shown(key) for key in Operator(manager_address, data_dir).ask("ListKeys", request).keys]
        if as_json:
            print_json({"keys": found})
        else:
            print_table(COLUMNS, ([key[name.lower()] for name in COLUMNS] for key in found))


@keys.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its id, as in the list; or all of it.")],
    manager_address: ManagerAddress = "",
    data_dir: DataFolder = None,
    *,
    as_json: AsJson = False,
) -> None:
    """Makes a key good for nothing: within seconds, at every gateway."""
    from parrot_proto.manager.v1 import tenants_pb2
    from parrot_runtime.api_keys import parts_of

    with reporting("keys revoke", as_json=as_json):
        parts = parts_of(key)
        key_id = parts.id if parts is not None else key
        if not key_id:
            wrong_use("name a key")
        request = tenants_pb2.RevokeKeyRequest(id=key_id)
        revoked: pb.Key = Operator(manager_address, data_dir).ask("RevokeKey", request).key
        if as_json:
            print_json(_shown(revoked))
        else:
            sys.stdout.write(f"key {revoked.id} of tenant {revoked.tenant} is revoked\n")


def _shown(key: pb.Key) -> dict[str, object]:
    return {
        "id": key.id,
        "tenant": key.tenant,
        "label": key.label,
        "state": "revoked" if key.revoked_unix_ms else "good",
        "created": day(key.created_unix_ms),
        "created_unix_ms": key.created_unix_ms,
        "revoked_unix_ms": key.revoked_unix_ms,
    }


def day(unix_ms: int) -> str:
    """A moment, to the second, in UTC."""
    from datetime import UTC, datetime

    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
