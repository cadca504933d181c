"""How semantic functions are made: of a Python function and its docstring, or of a template by itself."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final, overload

from parrot import prompts
from parrot.arguments import signature_of
from parrot.errors import TemplateError
from parrot.function import Function, MakePrompt
from parrot.placeholders import Output, Parameter
from parrot.prompts import Message, Prompt
from parrot.sampling import SamplingConfig
from parrot.signatures import RESERVED, call_signature, dedent, parameters_of
from parrot.template import Hole, parse
from parrot.text import check_text

PROTOTYPE: Final = frozenset(
    {
        "cache_prefix",
        "conversation_template",
        "formatter",
        "fuse_fill",
        "model_type",
        "models",
        "output_criteria",
        "remove_pure_fill",
        "try_register",
    }
)
"""What only programs of the prototype say of a function."""


@overload
def semantic_function(function: Callable[..., Any], /) -> Function: ...


@overload
def semantic_function(
    *, model: str = "", sampling: SamplingConfig | None = None, chat: bool = False, system: str = ""
) -> Callable[[Callable[..., Any]], Function]: ...


@overload
def semantic_function(**prototype: Any) -> Callable[[Callable[..., Any]], Any]: ...


def semantic_function(
    function: Callable[..., Any] | None = None,
    /,
    *,
    model: str = "",
    sampling: SamplingConfig | None = None,
    chat: bool = False,
    system: str = "",
    **prototype: Any,
) -> Any:
    """Makes a semantic function of a Python function whose docstring is the prompt.

    Two grammars, which mix::

        @P.semantic_function
        def write_code(task: P.SemanticVariable):
            \"\"\"Write Python code of {{input:task}}.
            Code: {{output:code}}\"\"\"

        @P.semantic_function(model="smollm2-135m")
        def tell_a_joke(topic: P.Input, joke: P.Output(P.SamplingConfig(temperature=0.5))):
            \"\"\"Tell a joke about {{topic}}: {{joke}}\"\"\"

    An output may be of a type, `P.Output[T]`: see `P.Output`. A parameter with another annotation, or none,
    takes any Python object. The docstring's common indentation and its blank first and last lines are not
    part of the prompt; nothing else is changed.

    Args:
        model: the model it wants; empty: any.
        sampling: for outputs that have none of their own; by default `P.SamplingConfig()`.
        chat: the prompt is a chat, in the model's own format: what lies before the output is the user's
            message, and the output the assistant's.
        system: the system's message of that chat, a template too; it makes the prompt a chat.
        prototype: what programs of the prototype say (`formatter`, `conversation_template`, `models`, ...).

    Raises:
        TemplateError: the template is not well formed, or does not fit the parameters.
        InvalidText: the template or the model holds a lone surrogate.
        TypeError: the parameters can't be those of a semantic function.
    """
    if prototype:
        return _prototype(function, prototype, ours=bool(model or sampling or chat or system))
    # Annotations written as text may name what the caller's function holds.
    namespace = dict(sys._getframe(1).f_locals)
    make = functools.partial(
        _of_function, model=model, sampling=sampling, chat=chat, system=system, namespace=namespace
    )
    return make if function is None else make(function)


def define(
    name: str,
    template: str | None = None,
    *,
    messages: Sequence[Message | Mapping[str, str]] | None = None,
    outputs: Mapping[str, Any] | Collection[str] = (),
    model: str = "",
    sampling: SamplingConfig | None = None,
) -> Function:
    """Makes a semantic function of a template, or of the messages of a chat, that a program puts together.

    ::

        summarize = P.define("summarize", "Summarize: {{text}}\\nSummary: {{output:summary}}")
        ask = P.define("ask", messages=[P.system("Be brief."), P.user("{{question}}"),
                                        P.assistant("{{output:answer}}")])
        rate = P.define("rate", "Is {{text}} good? {{verdict}}", outputs={"verdict": Literal["yes", "no"]})

    It is called as one made by `P.semantic_function`: with its inputs by position, in the order in which
    their holes come, or by name.

    Args:
        template: used as it is.
        messages: instead of a template: what P.system, P.user and P.assistant make, or dicts with "role" and
            "content"; the last is the assistant's, and has the output.
        outputs: the names of outputs, or each with its type or its `P.Output(...)`; what a hole calls an
            output need not be among them.
        model: the model it wants; empty: any.
        sampling: for outputs that have none of their own.

    Raises:
        TemplateError: the template is not well formed, or does not fit `outputs`.
        TypeError: there is neither a template nor messages, or both; an output can't be of its type.
        InvalidText: a text holds a lone surrogate.
    """
    declared = _declared(outputs)
    if (template is None) == (messages is None):
        raise TypeError(f"{name}: give a template, or messages")
    chat = [_message(message) for message in messages or ()]
    texts = [message.content for message in chat] if template is None else [template]
    names = _input_names(texts, declared, name)
    parameters = {**{name: Parameter() for name in names}, **declared}

    def make(inputs: Collection[str], given: Collection[str]) -> Prompt:
        if template is None:
            return prompts.of_messages(chat, inputs, given)
        return prompts.of_template(check_text(template, f"the template of {name}"), inputs, given)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    inputs = [inspect.Parameter(found, kind) for found in names]
    return Function(
        name, make, parameters, lambda found: signature_of(inputs, found), model=model, sampling=sampling
    )


def _of_function(
    function: Callable[..., Any],
    *,
    model: str,
    sampling: SamplingConfig | None,
    chat: bool,
    system: str,
    namespace: Mapping[str, Any],
) -> Function:
    name = function.__name__
    template = check_text(dedent(function.__doc__ or ""), f"the template of {name}")
    if not template:
        raise TemplateError(f"{name} has no docstring, which is its prompt template")
    made = Function(
        name,
        _maker(template, system, chat=chat or bool(system)),
        parameters_of(function, namespace),
        lambda outputs: call_signature(function, outputs),
        model=model,
        sampling=sampling,
        said_outputs=_said_outputs(template),
    )
    made.__doc__, made.__module__ = function.__doc__, function.__module__
    return made


def _maker(template: str, system: str, *, chat: bool) -> MakePrompt:
    def make(inputs: Collection[str], outputs: Collection[str]) -> Prompt:
        if not chat:
            return prompts.of_template(template, inputs, outputs)
        return prompts.of_messages(prompts.chat_of(template, system, outputs), inputs, outputs)

    return make


def _said_outputs(template: str) -> set[str]:
    try:
        pieces = parse(template)
    except TemplateError:
        return set()  # Whoever makes the prompt says so, with the function's name.
    return {piece.name for piece in pieces if isinstance(piece, Hole) and piece.direction == "output"}


def _declared(outputs: Mapping[str, Any] | Collection[str]) -> dict[str, Parameter]:
    if isinstance(outputs, str):
        raise TypeError("outputs is a list of names, or a dict of their types")
    types = outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs, str)
    return {
        name: Parameter(kind if isinstance(kind, Output) or kind is Output else Output(type=kind))
        for name, kind in types.items()
    }


def _input_names(texts: Sequence[str], outputs: Mapping[str, Parameter], name: str) -> list[str]:
    """The inputs, in the order of their first holes; of what can't be parsed, its parser will tell."""
    try:
        pieces = [piece for text in texts for piece in parse(text)]
    except TemplateError:
        return []
    holes = [piece for piece in pieces if isinstance(piece, Hole)]
    made = {hole.name for hole in holes if hole.direction == "output"} | set(outputs)
    names = list(dict.fromkeys(hole.name for hole in holes if hole.name not in made))
    if RESERVED in names:
        raise TypeError(f"{name}: 'session' names the session of a call; rename the hole")
    return names


def _message(given: Message | Mapping[str, str]) -> Message:
    if isinstance(given, Message):
        return given
    if not isinstance(given, Mapping) or set(given) != {"role", "content"}:
        raise TypeError("a message is what P.user makes, or a dict with a role and a content")
    return Message(given["role"], given["content"])  # type: ignore[arg-type]


def _prototype(function: Callable[..., Any] | None, prototype: dict[str, Any], *, ours: bool) -> Any:
    unknown = sorted(prototype.keys() - PROTOTYPE)
    if unknown:
        raise TypeError(f"semantic_function() got an unexpected keyword argument {unknown[0]!r}")
    if ours:
        raise TypeError(f"{', '.join(sorted(prototype))}: these are the prototype's; they don't go with ours")
    from parrot.compat.functions import prototype_function

    make = prototype_function(**prototype)
    return make if function is None else make(function)
