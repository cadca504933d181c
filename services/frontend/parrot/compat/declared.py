"""What the prototype's decorators read off a Python function."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

from parrot import placeholders, signatures
from parrot.compat.body import REQUIRED, Parameter, ParamType
from parrot.sampling import SamplingConfig


def callers_namespace() -> dict[str, Any]:
    """What the code that uses this SDK has around it: annotations that are written as text may name it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "parrot":
        frame = frame.f_back
    return dict(frame.f_locals) if frame is not None else {}


def parameters_of(function: Callable[..., Any], namespace: Mapping[str, Any]) -> list[Parameter]:
    """The parameters that a function's signature declares.

    Args:
        namespace: what annotations that are written as text may name, beside the function's globals.

    Raises:
        ValueError: it declares what it returns.
        TypeError: it has annotations or parameters that can't be.
    """
    signature = inspect.signature(function)
    if signature.return_annotation not in {inspect.Signature.empty, None, "None"}:
        raise ValueError(f"{function.__name__}: outputs are parameters; it can't have a return annotation")
    declared = signatures.parameters_of(function, namespace, reserved="")
    return [_parameter(signature.parameters[name], said) for name, said in declared.items()]


def _parameter(written: inspect.Parameter, said: placeholders.Parameter) -> Parameter:
    output = said.output
    if said.kind == "output":
        return Parameter(
            written.name,
            ParamType.OUTPUT_LOC,
            sampling_config=output.sampling_config or SamplingConfig(),
            dispatch_annotation=output.dispatch_annotation,
            transforms=output.transforms,
            output_type=output.output_type,
        )
    kind = ParamType.INPUT_LOC if said.kind == "input" else ParamType.INPUT_PYOBJ
    default = REQUIRED if written.default is inspect.Parameter.empty else written.default
    return Parameter(written.name, kind, transforms=said.transforms, default=default)
