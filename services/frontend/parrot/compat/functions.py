"""The prototype's semantic functions: defined as there, run by the session or machine they are called in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parrot.compat import environment, stateful
from parrot.compat.arguments import BasicCall
from parrot.compat.body import (
    Body,
    Constant,
    ModelType,
    Parameter,
    Piece,
    check_body,
    is_output,
    parse_body,
    piece_text,
)
from parrot.compat.declared import callers_namespace, parameters_of
from parrot.compat.formatting import Transform, standard_formatter
from parrot.compat.payloads import semantic_payload
from parrot.compat.sending import semantic_call
from parrot.criteria import Criteria, to_wire
from parrot.errors import PlaceholderError, TemplateError
from parrot.text import check_text


@dataclass(frozen=True, slots=True, kw_only=True)
class SemanticFuncMetadata:
    """What a semantic function says of itself.

    Attributes:
        models: those that may run it; of several, the first that is served. None: any.
        model_type: accepted; a function runs on any engine.
        remove_pure_fill: leaves out what follows the last output.
        cache_prefix: accepted; prompts share what they have in common by themselves.
        output_criteria: has its outputs made as soon as it is called, and how; by default they are made
            when somebody reads what they lead to.
        fuse_fill: accepted; how a prompt is filled does not show.
    """

    models: Sequence[str] = ()
    model_type: ModelType = "token_id"
    remove_pure_fill: bool = True
    cache_prefix: bool = True
    output_criteria: Criteria | None = None
    fuse_fill: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.models, str):
            raise TypeError("models is a list of models' names")
        for model in self.models:
            check_text(model, "a name of models")
        if self.model_type not in {"token_id", "text"}:
            raise ValueError(f"model_type is {self.model_type!r}; it is 'token_id' or 'text'")
        to_wire(self.output_criteria)


class BasicFunction:
    """A function with a name and parameters.

    Attributes:
        params: all, as they were declared.
        params_map: the same, by name.
        inputs: those that are no outputs.
        outputs: those that are.
    """

    def __init__(self, name: str, params: Sequence[Parameter]) -> None:
        self.name = check_text(name, "the name of a function")
        self.params = list(params)
        self.params_map = {param.name: param for param in self.params}
        if len(self.params_map) < len(self.params):
            raise ValueError(f"{name}: two parameters have the same name")
        self.inputs = [param for param in self.params if not param.is_output]
        self.outputs = [param for param in self.params if param.is_output]

    def display_signature(self) -> str:
        """Its name and parameters, for people."""
        shown = ", ".join(f"{param.name}: {param.typ.name}" for param in self.params)
        return f"{self.name}({shown})"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.display_signature()}>"


class SemanticCall(BasicCall):
    """A call of a semantic function."""

    func: SemanticFunction

    def to_request_payload(self) -> dict[str, Any]:
        """The call as the prototype's wire API takes it. No argument can become a hole of the template."""
        return semantic_payload(self)


class SemanticFunction(BasicFunction):
    """A prompt template, called like a function.

    Attributes:
        body: the template in pieces.
        metadata: what it says of itself.

    Args:
        func_body_str: the template; or
        func_body: its pieces.
        try_register: accepted; a function needs no registration.

    Raises:
        PlaceholderError: template and parameters don't agree.
        TypeError: the metadata has an unknown name.
    """

    def __init__(
        self,
        name: str,
        params: Sequence[Parameter],
        func_body_str: str | None = None,
        func_body: Sequence[Piece] | None = None,
        try_register: bool = True,
        **metadata: Any,
    ) -> None:
        super().__init__(name, params)
        self.metadata = SemanticFuncMetadata(**metadata)
        if func_body is not None:
            self.body: Body = list(func_body)
        elif func_body_str is not None:
            text = check_text(func_body_str, f"the template of {name}")
            self.body = parse_body(text, self.params_map, remove_pure_fill=self.metadata.remove_pure_fill)
        else:
            raise TemplateError(f"{name} has no docstring, which is its prompt template")

    def evolve(self, *, params: Sequence[Parameter] | None = None, body: Sequence[Piece]) -> SemanticFunction:
        """The same function with another body."""
        metadata = {name: getattr(self.metadata, name) for name in SemanticFuncMetadata.__slots__}
        return SemanticFunction(self.name, params or self.params, func_body=body, **metadata)

    def check(self) -> None:
        """Refuses a template that can't be generated from.

        Raises:
            PlaceholderError: what is wrong with it.
        """
        try:
            check_body(self.body, [param.name for param in self.outputs])
        except PlaceholderError as error:
            raise PlaceholderError(f"{self.name}: {error}", name=error.name) from None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Adds a call to the session or machine this runs in.

        Inputs come by place or by name; an output, by name, is the variable it becomes.

        Returns:
            The one output a variable was made for, or a tuple of them in the parameters' order. Outside
            of any session: the `SemanticCall` itself.

        Raises:
            ArgumentError: the arguments don't fit.
            SessionError: a variable can't be used here.
        """
        return self._call(None, args, kwargs)

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        """As calling it."""
        return self._call(None, args, kwargs)

    async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
        """As calling it; where calls are sent at once, it returns when this one was accepted."""
        result = self._call(None, args, kwargs)
        await environment.sent()
        return result

    def invoke_statefully(self, context_successor: SemanticFunction | None, *args: Any, **kwargs: Any) -> Any:
        """As calling it, and the next call of `context_successor` goes on where this one ended: its
        prompt begins with this one's, outputs included."""
        return self._call(context_successor, args, kwargs)

    def to_template_str(self) -> str:
        """The template as the prototype writes it."""
        return "".join(map(piece_text, self.body))

    def display(self) -> str:
        """As `to_template_str`."""
        return self.to_template_str()

    @property
    def prefix(self) -> Constant:
        """The text it begins with.

        Raises:
            TemplateError: it does not begin with text.
        """
        first = self.body[0] if self.body else None
        if not isinstance(first, Constant):
            raise TemplateError(f"{self.name} does not begin with text")
        return first

    def _call(
        self, successor: SemanticFunction | None, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        call = SemanticCall(self, args, kwargs)
        session = environment.session_of(self.name)
        if session is None:
            return call
        if successor is not None:
            stateful.hold(call)
        next_name = successor.name if successor is not None else None
        with stateful.continued(session, self.name, next_name) as context:
            if any(map(is_output, self.body)) or successor is None:
                environment.add(session, semantic_call(call, context.before, session))
            context.after = (*context.before, *stateful.pieces_of(call))
        return call.result


def prototype_function(
    formatter: Transform | None = standard_formatter,
    conversation_template: Transform | None = None,
    try_register: bool = True,
    **semantic_func_metadata: Any,
) -> Callable[[Callable[..., Any]], SemanticFunction]:
    """The prototype's `semantic_function`: makes a function of one whose docstring is the prompt.

    Args:
        formatter: makes the prompt of the docstring; by default one line of it.
        conversation_template: makes a conversation of the prompt.
        try_register: accepted; a function needs no registration.
        **semantic_func_metadata: see `SemanticFuncMetadata`.

    Raises:
        PlaceholderError: template and parameters don't agree.
        ValueError: the function has a return annotation.
        TypeError: a keyword is unknown.
    """
    SemanticFuncMetadata(**semantic_func_metadata)
    transforms = [transform for transform in (formatter, conversation_template) if transform is not None]
    namespace = callers_namespace()

    def decorate(function: Callable[..., Any]) -> SemanticFunction:
        made = SemanticFunction(
            function.__name__,
            parameters_of(function, namespace),
            func_body_str=function.__doc__,
            try_register=try_register,
            **semantic_func_metadata,
        )
        for transform in transforms:
            made = transform.transform(made)
        made.check()
        return made

    return decorate
