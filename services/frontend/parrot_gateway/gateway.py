"""What every route works with."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from fastapi import Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Scope

from parrot_gateway.closing import Closing
from parrot_gateway.doors.door import TENANT_SCOPE
from parrot_gateway.manager_client import ManagerClient
from parrot_gateway.metrics import GatewayMetrics
from parrot_gateway.settings import GatewaySettings
from parrot_gateway.watch import Watch, watching, watching_accepted
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.reader import Feeds
from parrot_runtime.values.session_log import SessionLogs

DEFAULT_TENANT: Final = "default"
"""The one tenant there is while no keys are asked for."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """The connections of one gateway process, used as one tenant."""

    settings: GatewaySettings
    manager: ManagerClient
    bus: Bus
    feeds: Feeds
    closing: Closing
    logs: SessionLogs
    metrics: GatewayMetrics = field(default_factory=GatewayMetrics)

    @property
    def tenant(self) -> str:
        """Whose requests these are."""
        return self.manager.tenant

    def of(self, tenant: str) -> Gateway:
        """The same connections, used as another tenant."""
        return replace(self, manager=self.manager.of(tenant))

    def watch(
        self,
        session_id: str,
        variable_id: str,
        offset_bytes: int = 0,
        criteria: manager_pb2.Criteria | None = None,
    ) -> AbstractAsyncContextManager[Watch]:
        """A watch of a variable; see `watching`."""
        return watching(
            self.manager,
            self.feeds,
            session_id,
            variable_id,
            offset_bytes=offset_bytes,
            recheck_s=self.settings.recheck_s,
            criteria=criteria,
        )

    def watch_accepted(self, session_id: str, variable_id: str) -> AbstractAsyncContextManager[Watch]:
        """A watch of an output of a call that was accepted; see `watching_accepted`."""
        return watching_accepted(
            self.manager, self.feeds, session_id, variable_id, recheck_s=self.settings.recheck_s
        )


async def _gateway(request: Request) -> Gateway:
    """The connections, as the tenant whose request it is."""
    found: Gateway = request.app.state.gateway
    return found.of(tenant_of(request.scope))


def tenant_of(scope: Scope) -> str:
    """Whose request it is: of the tenant of its key, or of the only one there is without keys."""
    found: str = scope.get(TENANT_SCOPE, DEFAULT_TENANT)
    return found


GatewayDep = Annotated[Gateway, Depends(_gateway)]


def answer(resource: BaseModel, status: int = 200) -> Response:
    """A resource as an answer."""
    return Response(resource.model_dump_json(), status_code=status, media_type="application/json")
