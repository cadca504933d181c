"""Whether a gateway can serve, and what it lacks if not."""

from __future__ import annotations

from typing import Final

from parrot_gateway.gateway import Gateway
from parrot_runtime.errors import Fault

READY_S: Final = 2.0


async def reasons(gateway: Gateway) -> list[str]:
    """Why it can't serve, in words; nothing: it can."""
    found: list[str] = []
    if gateway.closing.begun:
        found.append("this gateway is stopping")
    if not gateway.bus.client.is_connected:
        found.append("the bus (NATS) can't be reached")
    try:
        await gateway.manager.list_models(READY_S)
        await gateway.manager.check_health(READY_S)
    except Fault as fault:
        found.append(f"no manager serves: {fault.message}")
    return found
