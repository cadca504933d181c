"""Native functions: plain Python as nodes of the graph, run in the process that called them."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from parrot.bodies import recorded
from parrot.compat import environment, instances, worker
from parrot.compat.arguments import BasicCall
from parrot.compat.body import Parameter
from parrot.compat.declared import callers_namespace, parameters_of
from parrot.compat.functions import BasicFunction
from parrot.compat.payloads import native_payload
from parrot.compat.stateful import bound_text
from parrot.criteria import Criteria, to_wire
from parrot.errors import PlaceholderError, SessionError
from parrot.nodes import Call
from parrot.session import Session
from parrot.text import check_text
from parrot.variable import SemanticVariable

CLAIM_S: Final = 60.0
"""How long the server waits for this process to take a call whose inputs are there."""
BLOCK: Final = "b-"
"""What the ids of blocks begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeFuncMetadata:
    """What a native function says of itself.

    Attributes:
        timeout: seconds a call may run; it fails then, though Python can't stop what it still does. None:
            as long as the session lives.
        output_criteria: has its outputs made as soon as it is called, and how; by default they are made
            when somebody reads what they lead to.
    """

    timeout: float | None = None
    output_criteria: Criteria | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise ValueError(f"timeout is {self.timeout}; it is more than 0 seconds, or None")
        to_wire(self.output_criteria)


class OutputSlot:
    """What a native function gets for an output: `set` gives it its text, once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.content: str | None = None

    def __repr__(self) -> str:
        return f"<output {self.name}: {'set' if self.content is not None else 'not set yet'}>"

    def set(self, content: str) -> None:
        """Gives the output its text.

        Raises:
            SessionError: it has one.
            TypeError: it is not a str.
            InvalidText: it holds a lone surrogate.
        """
        if self.content is not None:
            raise SessionError(f"the output {self.name} is set already; an output is set once")
        self.content = check_text(content, f"the output {self.name}")


class PyNativeCall(BasicCall):
    """A call of a native function."""

    func: PyNativeFunction

    def to_request_payload(self) -> dict[str, Any]:
        """The call as the prototype's wire API takes it, but for the code, which is never sent."""
        return native_payload(self)

    def run(self, inputs: Mapping[str, str]) -> dict[str, str]:
        """Runs the function, its variables having these texts; the texts of its outputs.

        Raises:
            SessionError: it left an output without a text.
            What the function raises.
        """
        slots = {param.name: OutputSlot(param.name) for param in self.func.outputs}
        returned = self.func.get_pyfunc()(**{**self.bindings, **inputs, **slots})
        if inspect.iscoroutine(returned):
            asyncio.run(returned)
        made = {name: slot.content for name, slot in slots.items() if slot.content is not None}
        missing = [name for name in slots if name not in made]
        if missing:
            raise SessionError(
                f"{self.func.name} ended without a text for {', '.join(missing)}; call {missing[0]}.set(...)"
            )
        return made


class PyNativeFunction(BasicFunction):
    """A Python function, called like a semantic one; it may be `async`. It runs once its inputs are there.

    Inputs are texts; a plain parameter is the object it was called with; an output has `set`.

    Args:
        try_register: accepted; a function needs no registration.

    Raises:
        PlaceholderError: it has no output.
        TypeError: the metadata has an unknown name.
    """

    def __init__(
        self,
        name: str,
        pyfunc: Callable[..., Any],
        params: Sequence[Parameter],
        try_register: bool = True,
        **metadata: Any,
    ) -> None:
        super().__init__(name, params)
        self.metadata = NativeFuncMetadata(**metadata)
        self._pyfunc = pyfunc
        if not self.outputs:
            raise PlaceholderError(
                f"{name} has no output, so nothing would wait for it; give it a P.Output parameter"
            )

    def get_pyfunc(self) -> Callable[..., Any]:
        """The Python function."""
        return self._pyfunc

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Adds a call to the session or machine this runs in.

        Returns:
            The one output a variable was made for, or a tuple of them in the parameters' order. Outside of
            any session: the `PyNativeCall` itself.

        Raises:
            ArgumentError: the arguments don't fit.
            SessionError: a variable can't be used here.
        """
        call = PyNativeCall(self, args, kwargs)
        session = environment.session_of(self.name)
        if session is None:
            return call
        environment.add(session, _call_of(call))
        return call.result

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        """As calling it."""
        return self(*args, **kwargs)

    async def ainvoke(self, *args: Any, **kwargs: Any) -> Any:
        """As calling it; where calls are sent at once, it returns when this one was accepted."""
        result = self(*args, **kwargs)
        await environment.sent()
        return result


def native_function(**native_func_metadata: Any) -> Callable[[Callable[..., Any]], PyNativeFunction]:
    """Makes a node of the graph of a Python function.

    It runs in a thread of the process that calls it, when its inputs are there; the server waits for what
    it sets, and fails the call when the process is lost::

        @P.native_function()
        def shout(text: P.Input, loud: P.Output):
            loud.set(text.upper())

    Args:
        **native_func_metadata: see `NativeFuncMetadata`.

    Raises:
        PlaceholderError: the function has no output.
        ValueError: it has a return annotation.
        TypeError: a keyword is unknown.
    """
    NativeFuncMetadata(**native_func_metadata)
    namespace = callers_namespace()

    def decorate(function: Callable[..., Any]) -> PyNativeFunction:
        params = parameters_of(function, namespace)
        return PyNativeFunction(function.__name__, function, params, **native_func_metadata)

    return decorate


def _call_of(call: PyNativeCall) -> Call:
    func = call.func
    name = _name_of(func)
    # The function sees what the caller sees, such as its session.
    context = contextvars.copy_context()
    inputs = {
        param.name: bound_text(call, param.name)
        for param in func.inputs
        if param.is_input_loc or isinstance(call.bindings[param.name], SemanticVariable)
    }
    # What a body makes is read by nobody: its block's outputs are.
    wanted = to_wire(func.metadata.output_criteria) if recorded() is None else {}

    def accepted(session: Session, call_id: str) -> None:
        # In a body, whose calls have instances, several run at once: a context is entered by one.
        work = worker.Work(name, lambda texts: context.copy().run(call.run, texts), func.metadata.timeout)
        if call_id.startswith(BLOCK):
            instances.serve_block(session, call_id, work)
        else:
            session._spawn(worker.serve(session, call_id, work))

    return Call(
        name=name,
        model="",
        template="",
        inputs=inputs,
        outputs=call.outputs,
        sampling={},
        transforms={
            param.name: param.transforms
            for param in func.params
            if param.transforms and (param.is_output or param.name in inputs)
        },
        native={"kind": "client", "timeout_s": CLAIM_S},
        criteria=dict.fromkeys(call.outputs, wanted) if wanted else {},
        on_accepted=accepted,
    )


def _name_of(func: PyNativeFunction) -> str:
    """The name of a call; in a body, where an instance is known by it, one of its own."""
    body = recorded()
    before = sum(call.native is not None for call in body.calls) if body is not None else 0
    return f"{func.name} {before + 1}" if before else func.name
