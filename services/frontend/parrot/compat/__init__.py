"""The prototype's `P`: `from parrot import P`. Everything of this SDK is in it too.

Programs written for the prototype run on it as they are. Of the names that this SDK has as well, one does
something else here than in `import parrot as P`: `@P.semantic_function()`, with parentheses, makes one line
of its docstring, as in the prototype. Without parentheses, or with this SDK's own keywords, it is this SDK's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, overload

import parrot
from parrot import (
    LATENCY,
    THROUGHPUT,
    TPOT,
    TTFT,
    BlockInfo,
    CallFailed,
    CallInfo,
    Cancelled,
    Condition,
    Criteria,
    Deadline,
    Function,
    Guide,
    Input,
    InvalidOutput,
    InvalidText,
    Message,
    NoValue,
    Output,
    ParrotError,
    PerformanceCriteria,
    PlaceholderError,
    RequestRefused,
    SamplingConfig,
    Sandboxed,
    SemanticFunction,
    SemanticVariable,
    ServerUnavailable,
    Session,
    SessionError,
    SessionEvent,
    SessionInfo,
    Skipped,
    TemplateError,
    VariableInfo,
    WaitTimeout,
    assistant,
    attach,
    cond,
    define,
    loop,
    map,  # noqa: A004 - P.map
    retry,
    sandboxed,
    select,
    system,
    user,
    when,
)
from parrot.compat.body import DispatchAnnotation, Parameter, ParamType
from parrot.compat.conversation import ConversationTemplate, SeparatorStyle, vicuna_template
from parrot.compat.formatting import (
    AlwaysOneSpace,
    FuncMutator,
    PromptFormatter,
    PyIndentRemover,
    Sequential,
    SquashIntoOneLine,
    Transform,
    allowing_newline,
    standard_formatter,
)
from parrot.compat.functions import SemanticFunction as _PrototypeFunction
from parrot.compat.functions import prototype_function
from parrot.compat.machine import VirtualMachine
from parrot.compat.native import native_function
from parrot.compat.variables import variable

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
    "SeparatorStyle",
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

_OURS: Final = frozenset({"model", "sampling", "chat", "system"})


_Ours = Callable[[Callable[..., Any]], Function]
_Theirs = Callable[[Callable[..., Any]], _PrototypeFunction]


@overload
def semantic_function(formatter: Callable[..., Any], /) -> Function: ...


@overload
def semantic_function(
    *, model: str, sampling: SamplingConfig | None = None, chat: bool = False, system: str = ""
) -> _Ours: ...


@overload
def semantic_function(*, sampling: SamplingConfig | None, chat: bool = False, system: str = "") -> _Ours: ...


@overload
def semantic_function(*, chat: bool, system: str = "") -> _Ours: ...


@overload
def semantic_function(*, system: str) -> _Ours: ...


@overload
def semantic_function(
    formatter: Transform | None = standard_formatter,
    conversation_template: Transform | None = None,
    try_register: bool = True,
    **semantic_func_metadata: Any,
) -> _Theirs: ...


def semantic_function(
    formatter: Any = standard_formatter,
    conversation_template: Any = None,
    try_register: bool = True,
    **semantic_func_metadata: Any,
) -> Any:
    """Makes a semantic function of a Python function whose docstring is the prompt.

    With parentheses it is the prototype's: see `prototype_function`, whose arguments it takes. Without
    them, or with this SDK's own keywords (`model`, `sampling`, `chat`, `system`), it is
    `parrot.semantic_function`.

    Raises:
        As these.
    """
    prototypes: dict[str, Any] = {
        name: given
        for name, given, default in (
            ("formatter", formatter, standard_formatter),
            ("conversation_template", conversation_template, None),
            ("try_register", try_register, True),
        )
        if given is not default
    }
    if callable(formatter):
        return parrot.semantic_function(formatter)
    if _OURS & semantic_func_metadata.keys():
        return parrot.semantic_function(**prototypes, **semantic_func_metadata)
    return prototype_function(**prototypes, **semantic_func_metadata)


def __getattr__(name: str) -> Any:
    """What this SDK has beside the prototype's names."""
    return getattr(parrot, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *dir(parrot)})
