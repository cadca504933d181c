"""The ASGI application."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from parrot_gateway import problems
from parrot_gateway.gateway import Gateway
from parrot_gateway.models import Problem
from parrot_gateway.observing import Observed
from parrot_gateway.routes import calls, health, models, sessions, streams, variables

DESCRIPTION = """
Parrot serves applications: graphs of calls whose templates' holes are semantic variables.
Make a session, add calls to it, then wait for a variable or stream it.
Every failure is a problem document (RFC 9457) whose `type` is stable and whose `field` names what to mend.
"""


def create_app(gateway: Gateway) -> FastAPI:
    """The application on these connections."""
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
    app.openapi = partial(_schema, app.openapi)  # type: ignore[method-assign]
    app.state.gateway = gateway
    app.add_middleware(Observed)
    problems.install(app)
    for module in (sessions, calls, variables, streams, models, health):
        app.include_router(module.router)
    return app


def _schema(generate: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    schema = generate()
    # Only answers that no route declares have this shape, so FastAPI doesn't know of it.
    schema["components"]["schemas"].setdefault("Problem", Problem.model_json_schema())
    return schema
