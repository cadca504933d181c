"""The prototype's paths: sessions, semantic calls, semantic variables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, NoReturn

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from parrot_gateway import resources
from parrot_gateway.compiling import compiled_calls
from parrot_gateway.connected import while_connected
from parrot_gateway.gateway import Gateway, GatewayDep, answer
from parrot_gateway.headers import KeyDep, criteria_of
from parrot_gateway.locating import locate
from parrot_gateway.manager_client import new_key
from parrot_gateway.prototype import shapes, variables
from parrot_gateway.prototype.calls import KINDS, Translated, translate
from parrot_gateway.prototype.identity import number_of, session_id_of
from parrot_gateway.prototype.requests import PrototypeRoute
from parrot_proto.manager.v1 import manager_pb2
from parrot_runtime import errors
from parrot_runtime.errors import Fault

LABEL: Final = "prototype"
SESSION_S: Final = 12 * 3600
"""As long as the prototype's documentation says."""

router = APIRouter(prefix="/v1", tags=["prototype"], route_class=PrototypeRoute)

SessionNumber = Annotated[str, Path(alias="session_id", description="as POST /v1/session gave it")]
SessionOf = Annotated[str, Query(alias="session_id", description="in the query, or in a JSON body")]


@router.post("/session", response_model=shapes.PrototypeSession)
async def register_session(
    gateway: GatewayDep, key: KeyDep, body: shapes.NewPrototypeSession | None = None
) -> Response:
    """Makes a session. Its calls run when somebody reads what they lead to."""
    session = await gateway.manager.create_session(
        LABEL, SESSION_S * 1000, key=key, criteria=criteria_of("throughput", 0), lazy=True
    )
    return answer(_session(session))


@router.get("/session/{session_id}", response_model=shapes.PrototypeSession)
async def get_session_info(gateway: GatewayDep, session: SessionNumber) -> Response:
    """A session and its state."""
    found = await gateway.manager.get_session(session_id_of(session), brief=True)
    return answer(_session(found.session))


@router.delete("/session/{session_id}", response_model=shapes.Nothing)
async def remove_session(gateway: GatewayDep, session: SessionNumber) -> Response:
    """Ends a session; what is unfinished is cancelled."""
    await gateway.manager.close_session(session_id_of(session))
    return answer(shapes.Nothing())


@router.post("/semantic_call", response_model=shapes.AcceptedPrototypeCall)
async def submit_semantic_call(gateway: GatewayDep, key: KeyDep, body: shapes.NewPrototypeCall) -> Response:
    """Adds a call to a session. Its outputs may be given variables of one's own by their var_id."""
    session_id = session_id_of(body.session_id)
    model = await _model(gateway, body.models)
    translated = translate(body, model, key)
    accepted = await _submit(gateway, session_id, translated, key)
    names = await _names(gateway, session_id, translated.nameless())
    return answer(
        shapes.AcceptedPrototypeCall(
            request_id=int(accepted.call_ids[0].partition("-")[2]), param_info=translated.param_info(names)
        )
    )


@router.post("/py_native_call", response_model=shapes.AcceptedPrototypeCall)
async def submit_py_native_call(request: Request) -> NoReturn:
    """Refused: the server runs no bytecode. Native functions run in the client, or in its sandbox."""
    raise Fault(
        errors.INVALID_REQUEST,
        "func_code: bytecode is never run here. P.native_function of this SDK runs in the client; for any "
        "client, a native call of POST /v1/sessions/{id}/calls is claimed by it, or carries its source",
        field="func_code",
    )


@router.post("/semantic_var", response_model=shapes.VariableId)
async def register_semantic_variable(
    gateway: GatewayDep, key: KeyDep, body: shapes.NewPrototypeVariable
) -> Response:
    """Makes a variable that is set later, while calls that read it may be added already."""
    session_id = session_id_of(body.session_id)
    return answer(shapes.VariableId(var_id=await variables.register(gateway, session_id, body.var_name, key)))


@router.get("/semantic_var", response_model=shapes.VariableList)
async def get_semantic_variable_list(gateway: GatewayDep, session: SessionOf) -> Response:
    """The variables of a session."""
    found = await gateway.manager.get_session(session_id_of(session))
    names = variables.names_of(found)
    return answer(
        shapes.VariableList(
            vars=[
                shapes.ListedVariable(
                    var_id=variable.id,
                    var_name=names[variable.id],
                    state=resources.variable_state(variable),
                )
                for variable in found.variables
            ]
        )
    )


@router.post("/semantic_var/{var_id}", response_model=shapes.Nothing)
async def set_semantic_variable(gateway: GatewayDep, var_id: str, body: shapes.PrototypeContent) -> Response:
    """Gives a variable its text, once."""
    await variables.set_content(gateway, session_id_of(body.session_id), var_id, body.content)
    return answer(shapes.Nothing())


@router.get("/semantic_var/{var_id}", response_model=shapes.VariableContent)
async def get_semantic_variable(
    request: Request,
    gateway: GatewayDep,
    var_id: str,
    session: SessionOf,
    criteria: Annotated[shapes.CriteriaName | None, Query()] = None,
) -> Response:
    """A variable's text, waited for until its session's deadline at the latest.

    What went wrong with it is the answer otherwise, with the status of its kind.
    """
    wanted = None if criteria is None else criteria_of(KINDS[criteria], 0)
    return await while_connected(request, _content(gateway, session_id_of(session), var_id, wanted))


async def _content(
    gateway: Gateway, session_id: str, variable_id: str, wanted: manager_pb2.Criteria | None
) -> Response:
    content = await variables.content(gateway, session_id, variable_id, wanted)
    return answer(shapes.VariableContent(content=content))


async def _submit(
    gateway: Gateway, session_id: str, translated: Translated, key: str
) -> manager_pb2.SubmitCallsResponse:
    try:
        compiled = await compiled_calls(translated.batch, key)
        return await gateway.manager.submit_calls(
            session_id, compiled.calls, compiled.values, key or new_key(), wanted=compiled.wanted
        )
    except Fault as fault:
        raise translated.relocated(locate(fault, translated.batch)) from None


async def _model(gateway: Gateway, models: Sequence[str]) -> str:
    """The model to ask for: of several, the first that is served now."""
    if len(models) <= 1:
        return "".join(models)
    served = {model.id for model in await gateway.manager.list_models()}
    return next((model for model in models if model in served), models[0])


async def _names(gateway: Gateway, session_id: str, variable_ids: Sequence[str]) -> dict[str, str]:
    """The names of variables whose ids don't tell them: those that came by another way than this API."""
    if not variable_ids:
        return {}
    return variables.names_of(await gateway.manager.get_session(session_id))


def _session(found: manager_pb2.Session) -> shapes.PrototypeSession:
    return shapes.PrototypeSession(
        session_id=number_of(found.id), id=found.id, state=resources.session(found).state
    )
