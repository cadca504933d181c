"""`parrot tenants`: what tenants may have, and what of it they have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from parrot_cli.failing import reporting, wrong_use
from parrot_cli.keys import TenantName
from parrot_cli.operating import DataFolder, ManagerAddress, Operator
from parrot_cli.screen import print_json, print_table
from parrot_cli.server import AsJson

if TYPE_CHECKING:
    from parrot_proto.manager.v1 import tenants_pb2 as pb

tenants = typer.Typer(no_args_is_help=True, help="Quotas of tenants. One without any has no limits.")

_LIMITS: Final = (
    "sessions",
    "calls",
    "tokens",
    "tokens_per_minute",
    "requests_per_second",
    "stored_bytes",
)


def _limit(what: str) -> Any:
    return typer.Option(min=0, help=f"{what}; 0: no limit of this kind.", show_default="as it is")


Sessions = Annotated[int | None, _limit("Sessions that are open")]
Calls = Annotated[int | None, _limit("Calls that have not ended")]
Tokens = Annotated[int | None, _limit("Tokens that calls which have not ended may come to use")]
TokensPerMinute = Annotated[int | None, _limit("Tokens a minute, of prompts and outputs")]
RequestsPerSecond = Annotated[int | None, _limit("HTTP requests a second, over all gateways")]
StoredBytes = Annotated[int | None, _limit("Templates and values that are kept, in bytes")]


@tenants.command()
def limit(  # noqa: PLR0917 - flags
    tenant: TenantName,
    sessions: Sessions = None,
    calls: Calls = None,
    tokens: Tokens = None,
    tokens_per_minute: TokensPerMinute = None,
    requests_per_second: RequestsPerSecond = None,
    stored_bytes: StoredBytes = None,
    manager_address: ManagerAddress = "",
    data_dir: DataFolder = None,
    *,
    none: Annotated[bool, typer.Option("--none", help="Takes all limits away.")] = False,
    as_json: AsJson = False,
) -> None:
    """Changes a tenant's limits. They hold from the next request on, over all gateways and managers."""
    from parrot_proto.manager.v1 import tenants_pb2

    given = {
        "sessions": sessions,
        "calls": calls,
        "tokens": tokens,
        "tokens_per_minute": tokens_per_minute,
        "requests_per_second": requests_per_second,
        "stored_bytes": stored_bytes,
    }
    changed = {name: value for name, value in given.items() if value is not None}
    with reporting("tenants limit", as_json=as_json):
        if none == bool(changed):
            wrong_use("name at least one limit, such as --calls 10, or --none")
        operator = Operator(manager_address, data_dir)
        limits = None
        if not none:
            known = operator.ask("GetTenant", tenants_pb2.GetTenantRequest(name=tenant)).tenant.limits
            limits = tenants_pb2.Limits(**{name: changed.get(name, getattr(known, name)) for name in _LIMITS})
        request = tenants_pb2.SetLimitsRequest(tenant=tenant, limits=limits)
        _show([operator.ask("SetLimits", request).tenant], as_json=as_json)


@tenants.command("list")
def list_tenants(
    manager_address: ManagerAddress = "", data_dir: DataFolder = None, *, as_json: AsJson = False
) -> None:
    """Lists the tenants that have limits, with what of each is taken now."""
    from parrot_proto.manager.v1 import tenants_pb2

    with reporting("tenants list", as_json=as_json):
        operator = Operator(manager_address, data_dir)
        _show(operator.ask("ListTenants", tenants_pb2.ListTenantsRequest()).tenants, as_json=as_json)


def _show(found: list[pb.Tenant], *, as_json: bool) -> None:
    if as_json:
        print_json({"tenants": [_shown(tenant) for tenant in found]})
        return
    columns = ["TENANT", "#SESSIONS", "#CALLS", "#TOKENS", "#TOKENS/MIN", "#REQUESTS/S", "#STORED BYTES"]
    print_table(columns, (_row(tenant) for tenant in found))


def _shown(tenant: pb.Tenant) -> dict[str, object]:
    limited = tenant.HasField("limits")
    return {
        "tenant": tenant.name,
        "limits": {name: getattr(tenant.limits, name) or None for name in _LIMITS} if limited else None,
        "taken": {name: getattr(tenant, name) for name in ("sessions", "calls", "tokens", "stored_bytes")},
        "tokens_left_this_minute": tenant.token_budget if tenant.limits.tokens_per_minute else None,
    }


def _row(tenant: pb.Tenant) -> list[object]:
    limits = tenant.limits
    return [
        tenant.name,
        _of(tenant.sessions, limits.sessions),
        _of(tenant.calls, limits.calls),
        _of(tenant.tokens, limits.tokens),
        f"{tenant.token_budget:,} left of {limits.tokens_per_minute:,}" if limits.tokens_per_minute else "-",
        f"{limits.requests_per_second:,}" if limits.requests_per_second else "-",
        _of(tenant.stored_bytes, limits.stored_bytes),
    ]


def _of(taken: int, limit: int) -> str:
    return f"{taken:,}/{limit:,}" if limit else f"{taken:,}"
