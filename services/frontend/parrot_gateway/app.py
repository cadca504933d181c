"""The ASGI application."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline
from starlette.middleware.cors import CORSMiddleware

from parrot_gateway import problems
from parrot_gateway.doors.door import Admission, Door, Keyed, Keyless
from parrot_gateway.doors.keys import KeyRing
from parrot_gateway.doors.rates import Rates
from parrot_gateway.gateway import Gateway
from parrot_gateway.models import Problem
from parrot_gateway.observing import Observed
from parrot_gateway.openai import routes as openai
from parrot_gateway.openai.responses import routes as responses
from parrot_gateway.routes import (
    calls,
    claims,
    events,
    health,
    models,
    prototype,
    sessions,
    streams,
    traces,
    variables,
)

DESCRIPTION = """
Parrot serves applications: graphs of calls whose templates' holes are semantic variables.
Make a session, add calls to it, then wait for a variable or stream it.
Every failure is a problem document (RFC 9457) whose `type` is stable and whose `field` names what to mend.
"""


CORS: Final[dict[str, Any]] = {
    "allow_methods": ["GET", "POST", "PUT", "DELETE"],
    "allow_headers": ["*"],
    "expose_headers": ["Retry-After"],
}
"""Pages may read and send all there is; their users' keys come with the request, and never cookies."""


def create_app(gateway: Gateway, admission: Admission) -> FastAPI:
    """The application on these connections, for whom `admission` admits."""
    # Its pages take their scripts from here and not from elsewhere: they work in a closed network.
    app = FastAPIOffline(
        title="Parrot",
        version="1",
        redoc_url=None,
        description=DESCRIPTION,
        redirect_slashes=False,
        responses={
            "default": {
                "description": "What went wrong",
                "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
            }
        },
    )
    app.openapi = partial(_schema, app.openapi, keys=gateway.settings.keys)  # type: ignore[method-assign]
    app.state.gateway = gateway
    # The last one is the outermost: what is refused is logged, and a web page is told even that.
    app.add_middleware(Door, admission=admission, answer=problems.answer_of, body_s=gateway.settings.body_s)
    if origins := origins_of(gateway.settings.cors_origins):
        app.add_middleware(CORSMiddleware, allow_origins=origins, **CORS)
    app.add_middleware(Observed, metrics=gateway.metrics, closing=gateway.closing)
    problems.install(app)
    for module in (
        sessions,
        events,
        calls,
        claims,
        variables,
        streams,
        traces,
        openai,
        responses,
        prototype,
        models,
        health,
    ):
        app.include_router(module.router)
    return app


def admission_of(gateway: Gateway) -> Admission:
    """Who comes in: whoever has a key, or without keys whoever reaches the loopback."""
    if not gateway.settings.keys:
        return Keyless(gateway.tenant, origins_of(gateway.settings.cors_origins))
    ring = KeyRing(gateway.manager.check_key, gateway.settings.key_recheck_s)
    return Keyed(ring, Rates(gateway.manager.lease_requests))


def origins_of(setting: str) -> list[str]:
    """The origins of a setting."""
    return [origin for part in setting.split(",") if (origin := part.strip())]


def _schema(generate: Callable[[], dict[str, Any]], *, keys: bool) -> dict[str, Any]:
    schema = generate()
    # Only answers that no route declares have this shape, so FastAPI doesn't know of it.
    schema["components"]["schemas"].setdefault("Problem", Problem.model_json_schema())
    if keys:
        schema["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{"key": []}]
    return schema
