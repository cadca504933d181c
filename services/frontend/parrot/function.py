"""Semantic functions: a signature and a prompt, called like a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from typing import Any

from parrot.arguments import Arguments
from parrot.errors import PlaceholderError, TemplateError
from parrot.nodes import Call
from parrot.placeholders import Parameter
from parrot.prompts import Prompt
from parrot.sampling import SamplingConfig
from parrot.session import Session, current
from parrot.text import check_text

MakePrompt = Callable[[Collection[str], Collection[str]], Prompt]
"""A prompt for the names that are declared as inputs, and those declared as outputs."""


class Function:
    """A semantic function. Calling it adds a call to the session and returns its outputs at once.

    Made by `P.semantic_function` and `P.define`.

    Attributes:
        name: for people and statistics.
        model: the model it wants; empty: any.
        prompt: its template or messages, with the holes in them.
    """

    def __init__(
        self,
        name: str,
        make_prompt: MakePrompt,
        parameters: Mapping[str, Parameter],
        signature: Callable[[Collection[str]], inspect.Signature],
        *,
        model: str = "",
        sampling: SamplingConfig | None = None,
        said_outputs: Collection[str] = (),
    ) -> None:
        self.name = self.__name__ = check_text(name, "the name of a function")
        self.model = check_text(model, f"the model of {name}")
        self.prompt = self._prompt_of(make_prompt, parameters, said_outputs)
        outputs = [name for name, way in self.prompt.holes.items() if way == "output"]
        known = {name: parameters.get(name) or Parameter() for name in self.prompt.holes}
        types = {name: known[name].output.output_type for name in outputs}
        self._sampling = {name: known[name].output.sampling(sampling) for name in outputs}
        transforms = {
            name: known[name].output.transforms if name in types else known[name].transforms for name in known
        }
        self._transforms = {name: found for name, found in transforms.items() if found}
        inputs = [name for name in self.prompt.holes if name not in types]
        self._arguments = Arguments(name, signature(set(types)), inputs, types)
        self.__signature__ = self._arguments.signature

    def __repr__(self) -> str:
        return f"<semantic function {self.name}{self.__signature__}>"

    @property
    def template(self) -> str:
        """The prompt's text; of a chat, that of its messages."""
        return self.prompt.text

    def __call__(self, *args: Any, session: Session | None = None, **kwargs: Any) -> Any:
        """Adds a call, and returns its output, or a tuple of them in the template's order.

        Inputs are texts or variables. Of a dataclass or a pydantic model the JSON is sent, and `str()` of
        anything else, as a value that can't hold placeholders. A variable passed by keyword for an output
        becomes that output.

        Args:
            session: the session to join; by default the one whose `with` block this is in.

        Raises:
            TypeError: the arguments do not fit the function.
            SessionError: there is no session, or a variable can't be used here.
            InvalidText: a text holds a lone surrogate.
        """
        inputs, outputs = self._arguments.bind(args, kwargs)
        target = session or current(self.name)
        target._add(
            Call(
                self.name,
                self.model,
                self.prompt.template,
                inputs,
                outputs,
                self._sampling,
                self._transforms,
                self.prompt.messages,
            )
        )
        return self._arguments.returned(outputs)

    def _prompt_of(
        self, make_prompt: MakePrompt, parameters: Mapping[str, Parameter], said_outputs: Collection[str]
    ) -> Prompt:
        """The prompt; what its template alone calls an output counts as one."""
        outputs = [
            name
            for name, parameter in parameters.items()
            if parameter.kind == "output" or (parameter.kind == "variable" and name in said_outputs)
        ]
        inputs = [name for name in parameters if name not in outputs]
        try:
            return make_prompt(inputs, outputs)
        except PlaceholderError as error:
            raise PlaceholderError(
                f"{self.name}: {error}", line=error.line, column=error.column, name=error.name
            ) from None
        except TemplateError as error:
            raise TemplateError(
                f"{self.name}: {error}", line=error.line, column=error.column, name=error.name
            ) from None
