"""From the prototype's calls to those that a session sends."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from parrot.background import background
from parrot.bodies import recorded
from parrot.compat.body import Constant, Parameter, ParamType, is_output, template_of
from parrot.compat.stateful import Bound, Told, bound_text
from parrot.criteria import to_wire
from parrot.errors import PlaceholderError
from parrot.nodes import Call
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.compat.functions import SemanticCall
    from parrot.session import Session

SERVED: Final = "served models"


def semantic_call(call: SemanticCall, before: Told, session: Session) -> Call:
    """A call as a session takes it, its prompt behind what was told before.

    Raises:
        PlaceholderError: it has no output.
        ServerUnavailable: it names several models, and the server can't be asked which are served.
    """
    func = call.func
    if not any(map(is_output, func.body)):
        raise PlaceholderError(
            f"{func.name} has no output, so there is nothing to generate; invoke_statefully() passes its "
            "text on to another function"
        )
    prompt = _Prompt()
    prompt.tell(before, func.params_map)
    for piece in func.body:
        prompt.pieces.append(piece.text if isinstance(piece, Constant) else piece.param)
        if not isinstance(piece, Constant) and not piece.param.is_output:
            prompt.inputs[piece.param.name] = bound_text(call, piece.param.name)
    outputs = call.outputs
    # What a body makes is read by nobody: its block's outputs are.
    wanted = to_wire(func.metadata.output_criteria) if recorded() is None else {}
    own = {param.name: param.transforms for param in func.params if param.transforms}
    return Call(
        name=func.name,
        model=_model(func.metadata.models, session),
        template=template_of(prompt.pieces),
        inputs=prompt.inputs,
        outputs=outputs,
        sampling={param.name: param.sampling() for param in func.outputs},
        transforms=prompt.transforms | own,
        criteria=dict.fromkeys(outputs, wanted) if wanted else {},
    )


@dataclass(slots=True)
class _Prompt:
    """A prompt that is put together: its texts and places, and what stands in these."""

    pieces: list[str | Parameter] = field(default_factory=list)
    inputs: dict[str, str | SemanticVariable] = field(default_factory=dict)
    transforms: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def tell(self, before: Told, params: Container[str]) -> None:
        """Takes in what was told before, whose places get names that no parameter has."""
        for place, piece in enumerate(before):
            if not isinstance(piece, Bound):
                self.pieces.append(piece)
                continue
            name = f"before_{place}"
            while name in params:
                name = f"_{name}"
            self.inputs[name] = piece.value
            if piece.transforms:
                self.transforms[name] = piece.transforms
            self.pieces.append(Parameter(name, ParamType.INPUT_LOC))


def _model(models: Sequence[str], session: Session) -> str:
    """The model to ask for: of several, the first that is served now."""
    if len(models) <= 1:
        return "".join(models)
    if SERVED not in session._beside:
        answer = background().run(session._client.request("GET", "/v1/models"))
        session._beside[SERVED] = [str(model["id"]) for model in answer["data"]]
    return next((model for model in models if model in session._beside[SERVED]), models[0])
