"""A manager, or a gateway, that counts nothing: what `metering.py` compares the real ones with.

Takes the service's own flags after its name.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.manager import memory_manager
from parrot_gateway import main as gateway
from parrot_gateway.metrics import GatewayMetrics
from parrot_manager.core.scheduling.backlog import Backlogs
from parrot_manager.metrics import ManagerMetrics
from parrot_manager.outboxes import Unstored
from parrot_runtime.monitor.rpcs import ObservedRpcs


def nothing(*_: object) -> None:
    """Counts nothing."""


async def passed_on(_: object, continuation: Any, details: Any) -> Any:
    """An RPC that nobody watches."""
    return await continuation(details)


def forget() -> None:
    """From here on this process counts nothing."""
    for kind, names in (
        (ManagerMetrics, ("ended", "dispatched", "decided", "rpc", "took", "failed")),
        (GatewayMetrics, ("answered", "over", "sent", "asked")),
        (Backlogs, ("add", "remove")),
        (Unstored, ("begin", "end")),
    ):
        for name in names:
            setattr(kind, name, nothing)
    for name in ("intercept_service",):
        setattr(ObservedRpcs, name, passed_on)


def main() -> None:
    """Serves until it is told to stop."""
    service = sys.argv.pop(1)
    forget()
    {"manager": memory_manager.main, "gateway": gateway.main}[service]()


if __name__ == "__main__":
    main()
