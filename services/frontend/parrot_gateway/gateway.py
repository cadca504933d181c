"""What every route works with."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.responses import Response
from pydantic import BaseModel

from parrot_gateway.closing import Closing
from parrot_gateway.manager_client import ManagerClient
from parrot_gateway.settings import GatewaySettings
from parrot_gateway.watch import Watch, watching
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime.values.bus import Bus
from parrot_runtime.values.reader import Feeds


@dataclass(frozen=True, slots=True)
class Gateway:
    """The connections of one gateway process."""

    settings: GatewaySettings
    manager: ManagerClient
    bus: Bus
    feeds: Feeds
    closing: Closing

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


async def _gateway(request: Request) -> Gateway:
    found: Gateway = request.app.state.gateway
    return found


GatewayDep = Annotated[Gateway, Depends(_gateway)]


def answer(resource: BaseModel, status: int = 200) -> Response:
    """A resource as an answer."""
    return Response(resource.model_dump_json(), status_code=status, media_type="application/json")
