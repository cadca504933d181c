"""Calls as the prototype's wire API takes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from parrot.compat.arguments import BasicCall
from parrot.compat.body import Parameter, ParameterLoc, piece_text
from parrot.criteria import to_wire
from parrot.sampling import SamplingConfig
from parrot.variable import SemanticVariable

if TYPE_CHECKING:
    from parrot.compat.functions import SemanticCall
    from parrot.compat.native import PyNativeCall

_SAMPLING: Final = (
    "temperature",
    "top_p",
    "max_gen_length",
    "ignore_tokenizer_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
)


def semantic_payload(call: SemanticCall) -> dict[str, Any]:
    """The body of a request that submits a call. Arguments are in `parameters`, and not in the template."""
    metadata = call.func.metadata
    placed = {piece.param.name for piece in call.func.body if isinstance(piece, ParameterLoc)}
    return {
        "template": "".join(map(piece_text, call.func.body)),
        "parameters": [_parameter(call, param) for param in call.func.params if param.name in placed],
        "func_name": call.func.name,
        "models": list(metadata.models),
        "model_type": metadata.model_type,
        "remove_pure_fill": metadata.remove_pure_fill,
        "cache_prefix": metadata.cache_prefix,
        "output_criteria": to_wire(metadata.output_criteria).get("kind"),
        "fuse_fill": metadata.fuse_fill,
    }


def native_payload(call: PyNativeCall) -> dict[str, Any]:
    """The body of a request that submits a native call, without its code."""
    metadata = call.func.metadata
    return {
        "parameters": [
            {name: told for name, told in _parameter(call, param).items() if name != "sampling_config"}
            for param in call.func.params
        ],
        "func_name": call.func.name,
        "timeout": metadata.timeout,
        "output_criteria": to_wire(metadata.output_criteria).get("kind"),
    }


def _parameter(call: BasicCall, param: Parameter) -> dict[str, Any]:
    told: dict[str, Any] = {"name": param.name, "is_output": param.is_output}
    given = call.bindings[param.name]
    if param.is_output:
        told["sampling_config"] = _sampling(param.sampling_config or SamplingConfig())
    elif not isinstance(given, SemanticVariable):
        told["value"] = call.text_of(param, given)
    elif given.content is not None:
        told["value"] = given.content
    if isinstance(given, SemanticVariable) and given._session is not None:
        told.pop("value", None)
        told["var_id"] = given.id
    return told


def _sampling(config: SamplingConfig) -> dict[str, Any]:
    told = {name: getattr(config, name) for name in _SAMPLING}
    return {
        **told,
        "stop_token_ids": list(config.stop_token_ids),
        "stop_str": list(config.stop_str or ()) or None,
        "logit_bias": dict(config.logit_bias or ()) or None,
    }
