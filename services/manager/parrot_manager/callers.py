"""What a client may call on a manager, by the name in its certificate."""

from __future__ import annotations

from typing import Any, Final

from grpc_health.v1 import health_pb2

from parrot_proto.engine.v1 import engine_pb2
from parrot_proto.manager.v1 import manager_pb2, tenants_pb2

_MANAGER: Final = manager_pb2.DESCRIPTOR.services_by_name["ManagerService"]
_TENANTS: Final = tenants_pb2.DESCRIPTOR.services_by_name["TenantService"]
_ENGINES: Final = engine_pb2.DESCRIPTOR.services_by_name["EngineControlService"]
_HEALTH: Final = [f"/{health_pb2.DESCRIPTOR.services_by_name['Health'].full_name}/Check"]


def _of(service: Any, *methods: str) -> list[str]:
    """Methods of a service by their paths; all of them, where none is named."""
    name = service.full_name
    found = {method.name for method in service.methods}
    if unknown := set(methods) - found:
        raise ValueError(f"{name} has no {sorted(unknown)}")
    return [f"/{name}/{method}" for method in methods or sorted(found)]


ALLOWED: Final = {
    # Applications' requests, and what it takes to know whose they are.
    "gateway": [*_of(_MANAGER), *_of(_TENANTS, "CheckKey", "LeaseRequests"), *_HEALTH],
    "engine": [*_of(_ENGINES), *_HEALTH],
    # Who makes keys and sets limits; what tenants say is not theirs to read.
    "operator": [
        *_of(_TENANTS),
        *_of(_MANAGER, "ListEngines", "ListManagers", "ListModels"),
        *_HEALTH,
    ],
}
"""By role, in full. A method that is not here is nobody's."""
