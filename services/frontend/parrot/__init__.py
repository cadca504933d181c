"""Parrot's client: semantic functions, the variables between them, and sessions.

import parrot as P

@P.semantic_function
def summarize(text: P.SemanticVariable):
    \"\"\"Summarize in one sentence: {{input:text}}
    Summary: {{output:summary}}\"\"\"

with P.Session():
    print(summarize("...").get())
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from parrot.choices import cond, select
from parrot.conditions import Condition, when
from parrot.criteria import LATENCY, THROUGHPUT, TPOT, TTFT, Criteria, Deadline, PerformanceCriteria
from parrot.defining import define, semantic_function
from parrot.errors import (
    CallFailed,
    Cancelled,
    InvalidOutput,
    InvalidText,
    NoValue,
    ParrotError,
    PlaceholderError,
    RequestRefused,
    ServerUnavailable,
    SessionError,
    Skipped,
    TemplateError,
    WaitTimeout,
)
from parrot.function import Function
from parrot.graph import loop, map, retry  # noqa: A004 - P.map
from parrot.guide import Guide
from parrot.info import BlockInfo, CallInfo, SessionInfo, VariableInfo
from parrot.placeholders import Input, Output
from parrot.prompts import Message, assistant, system, user
from parrot.sampling import SamplingConfig
from parrot.sandboxed import Sandboxed, sandboxed
from parrot.session import Session, attach
from parrot.variable import SemanticVariable, variable
from parrot.watching import SessionEvent

if TYPE_CHECKING:
    from parrot import compat as P  # noqa: N812 - the prototype's programs import it so
    from parrot.compat.body import DispatchAnnotation, Parameter, ParamType
    from parrot.compat.conversation import ConversationTemplate, vicuna_template
    from parrot.compat.formatting import (
        AlwaysOneSpace,
        FuncMutator,
        PromptFormatter,
        PyIndentRemover,
        Sequential,
        SquashIntoOneLine,
        allowing_newline,
        standard_formatter,
    )
    from parrot.compat.machine import VirtualMachine
    from parrot.compat.native import native_function

SemanticFunction = semantic_function
"""The paper's spelling of the decorator."""

_LAZY: Final = {
    "AlwaysOneSpace": "formatting",
    "ConversationTemplate": "conversation",
    "DispatchAnnotation": "body",
    "FuncMutator": "formatting",
    "ParamType": "body",
    "Parameter": "body",
    "PromptFormatter": "formatting",
    "PyIndentRemover": "formatting",
    "Sequential": "formatting",
    "SquashIntoOneLine": "formatting",
    "VirtualMachine": "machine",
    "allowing_newline": "formatting",
    "native_function": "native",
    "standard_formatter": "formatting",
    "vicuna_template": "conversation",
}
"""The prototype's names, and the modules of `parrot.compat` that have them; imported when they are used."""


def __getattr__(name: str) -> Any:
    if name == "P":
        return importlib.import_module("parrot.compat")
    if name in _LAZY:
        return getattr(importlib.import_module(f"parrot.compat.{_LAZY[name]}"), name)
    raise AttributeError(f"module 'parrot' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, "P"})


__all__ = [
    "LATENCY",
    "THROUGHPUT",
    "TPOT",
    "TTFT",
    "AlwaysOneSpace",
    "BlockInfo",
    "CallFailed",
    "CallInfo",
    "Cancelled",
    "Condition",
    "ConversationTemplate",
    "Criteria",
    "Deadline",
    "DispatchAnnotation",
    "FuncMutator",
    "Function",
    "Guide",
    "Input",
    "InvalidOutput",
    "InvalidText",
    "Message",
    "NoValue",
    "Output",
    "P",
    "ParamType",
    "Parameter",
    "ParrotError",
    "PerformanceCriteria",
    "PlaceholderError",
    "PromptFormatter",
    "PyIndentRemover",
    "RequestRefused",
    "SamplingConfig",
    "Sandboxed",
    "SemanticFunction",
    "SemanticVariable",
    "Sequential",
    "ServerUnavailable",
    "Session",
    "SessionError",
    "SessionEvent",
    "SessionInfo",
    "Skipped",
    "SquashIntoOneLine",
    "TemplateError",
    "VariableInfo",
    "VirtualMachine",
    "WaitTimeout",
    "allowing_newline",
    "assistant",
    "attach",
    "cond",
    "define",
    "loop",
    "map",
    "native_function",
    "retry",
    "sandboxed",
    "select",
    "semantic_function",
    "standard_formatter",
    "system",
    "user",
    "variable",
    "vicuna_template",
    "when",
]
