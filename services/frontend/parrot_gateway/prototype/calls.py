"""From a call as the prototype's clients send it to one of this server's."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from parrot.compat.body import (
    Body,
    Constant,
    Parameter,
    ParameterLoc,
    ParamType,
    check_body,
    parse_body,
    template_of,
)
from parrot.errors import PlaceholderError
from parrot_gateway.compiled import Compiled
from parrot_gateway.new_blocks import NewBatch, NewValue
from parrot_gateway.new_calls import NewCall, NewPlaceholder
from parrot_gateway.prototype.identity import name_in, named_id
from parrot_gateway.prototype.shapes import (
    CriteriaName,
    NewPrototypeCall,
    ParamInfo,
    PrototypeParameter,
    PrototypeSampling,
)
from parrot_gateway.sent import CriteriaKind, NewCriteria
from parrot_runtime import errors
from parrot_runtime.errors import Fault
from parrot_runtime.text import check_name

KINDS: Final[Mapping[CriteriaName, CriteriaKind]] = {
    "latency": "latency",
    "throughput": "throughput",
    "TTFT": "ttft",
    # Of a reader who wants each token soon; the engine's batch is kept small for both.
    "TPOT": "latency",
}
_PLACE: Final = re.compile(r"(placeholders|variables)\[(\d+)\]")
_FIELDS: Final = {
    "semantic_var_id": "var_id",
    "sampling": "sampling_config",
    "stop": "stop_str",
    "max_tokens": "max_gen_length",
    "ignore_eos": "ignore_tokenizer_eos",
}
_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class Translated:
    """A call in this server's form.

    Attributes:
        places: of the call's placeholders, the place of each among the parameters that were sent.
        value_places: the same of the batch's values.
        holes: the parameters that stand in the template, once for each hole, in order.
        variable_ids: by parameter.
    """

    batch: NewBatch
    places: list[int]
    value_places: list[int]
    holes: list[Parameter]
    variable_ids: dict[str, str]

    def relocated(self, fault: Fault) -> Fault:
        """A refusal of the batch, its field and message in the words of the request."""
        told = fault.field
        fault.field = self._field(told)
        if told:
            fault.message = fault.message.replace(told, fault.field)
        return fault

    def param_info(self, names: Mapping[str, str]) -> list[ParamInfo]:
        """What stands in each hole; `names`: of variables whose ids don't tell them."""
        return [
            ParamInfo(
                parameter_name=hole.name,
                is_output=hole.is_output,
                var_id=(variable_id := self.variable_ids[hole.name]),
                var_name=names.get(variable_id) or name_in(variable_id) or hole.name,
            )
            for hole in self.holes
        ]

    def nameless(self) -> list[str]:
        """The variables that were named by their ids, and whose ids don't tell their names."""
        return [
            self.variable_ids[hole.name]
            for hole in self.holes
            if not hole.is_output and not name_in(self.variable_ids[hole.name])
        ]

    def _field(self, told: str) -> str:
        field = told.removeprefix("calls[0].")
        if field.startswith("prompt"):
            return "template"
        match = _PLACE.match(field)
        if match is None:
            return {"name": "func_name", "model": "models"}.get(field, field)
        places = self.places if match[1] == "placeholders" else self.value_places
        rest = _WORD.sub(lambda word: _FIELDS.get(word[0], word[0]), field[match.end() :])
        return f"parameters[{places[int(match[2])]}]{rest}"


def translate(sent: NewPrototypeCall, model: str, key: str) -> Translated:
    """The batch that does what a call asks for.

    Args:
        model: the one of its models that is asked for; empty: any.
        key: the request's idempotency key, which the ids of its variables are made of.

    Raises:
        Fault: what is wrong with it, with the path of the field.
    """
    params = _declared(sent.parameters)
    body = _body(sent, params)
    placed = {piece.param.name for piece in body if isinstance(piece, ParameterLoc)}
    ids = Compiled(key)
    placeholders: list[NewPlaceholder] = []
    values: list[NewValue] = []
    places: list[int] = []
    value_places: list[int] = []
    variable_ids: dict[str, str] = {}
    for place, given in enumerate(sent.parameters):
        if given.name not in placed:
            continue
        variable_id = given.var_id if given.var_id is not None else named_id(ids.new_id(), given.name)
        variable_ids[given.name] = variable_id
        if given.value is not None:
            values.append(NewValue(semantic_var_id=variable_id, value=given.value, name=given.name))
            value_places.append(place)
        placeholders.append(_placeholder(given, variable_id, sent.output_criteria))
        places.append(place)
    call = NewCall(
        prompt=template_of([piece.text if isinstance(piece, Constant) else piece.param for piece in body]),
        placeholders=placeholders,
        name=sent.func_name,
        model=model,
    )
    holes = [piece.param for piece in body if isinstance(piece, ParameterLoc)]
    return Translated(NewBatch(calls=[call], variables=values), places, value_places, holes, variable_ids)


def _declared(parameters: Sequence[PrototypeParameter]) -> dict[str, Parameter]:
    params: dict[str, Parameter] = {}
    for place, given in enumerate(parameters):
        where = f"parameters[{place}]"
        check_name(given.name, f"{where}.name")
        if given.name in params:
            raise Fault(
                errors.PLACEHOLDER_MISMATCH,
                f"{where}.name: {given.name!r} is declared twice",
                field=f"{where}.name",
            )
        _check_parameter(given, where)
        kind = ParamType.OUTPUT_LOC if given.is_output else ParamType.INPUT_LOC
        params[given.name] = Parameter(given.name, kind)
    return params


def _check_parameter(given: PrototypeParameter, where: str) -> None:
    if given.is_output:
        if given.value is not None:
            raise Fault(errors.INVALID_REQUEST, f"{where}.value: an output has none", field=f"{where}.value")
        return
    if (given.var_id is None) == (given.value is None):
        raise Fault(
            errors.INVALID_REQUEST,
            f"{where}: an input has either a var_id or a value, and this has "
            f"{'neither' if given.value is None else 'both'}",
            field=where,
        )
    if given.sampling_config is not None:
        field = f"{where}.sampling_config"
        raise Fault(errors.INVALID_REQUEST, f"{field}: an input has none", field=field)


def _body(sent: NewPrototypeCall, params: dict[str, Parameter]) -> Body:
    """The template's pieces, every parameter having its place.

    Raises:
        Fault: `placeholder_mismatch`.
    """
    try:
        whole = parse_body(sent.template, params, remove_pure_fill=False)
        body = parse_body(sent.template, params, remove_pure_fill=sent.remove_pure_fill)
        check_body(whole, [name for name, param in params.items() if param.is_output])
    except PlaceholderError as error:
        raise Fault(errors.PLACEHOLDER_MISMATCH, f"template: {error}", field="template") from None
    if not any(param.is_output for param in params.values()):
        why = "template: it has no output, so there is nothing to generate; declare one in parameters"
        raise Fault(errors.PLACEHOLDER_MISMATCH, why, field="template")
    known = {piece.param.name for piece in whole if isinstance(piece, ParameterLoc)}
    for place, name in enumerate(params):
        if name not in known:
            where = f"parameters[{place}].name"
            why = f"{where}: {name!r} has no place in the template; write {{{{{name}}}}} there"
            raise Fault(errors.PLACEHOLDER_MISMATCH, why, field=where)
    return body


def _placeholder(
    given: PrototypeParameter, variable_id: str, criteria: CriteriaName | None
) -> NewPlaceholder:
    if not given.is_output:
        return NewPlaceholder(name=given.name, in_out="in", semantic_var_id=variable_id)
    return NewPlaceholder(
        name=given.name,
        in_out="out",
        semantic_var_id=variable_id,
        sampling=(given.sampling_config or PrototypeSampling()).settings(),
        criteria=None if criteria is None else NewCriteria(kind=KINDS[criteria]),
    )
