"""What goes wrong is raised, and the program ends with an error."""

import sys
import threading

from parrot import P

vm = P.VirtualMachine(core_http_addr=sys.argv[1])


@P.native_function()
def broken(text: P.Input, out: P.Output):
    raise KeyError(f"no such thing: {text}")


@P.native_function(timeout=0.2)
def slow(text: P.Input, out: P.Output):
    threading.Event().wait()


@P.native_function()
def forgetful(text: P.Input, out: P.Output):
    pass


@P.semantic_function()
def after(text: P.Input, out: P.Output):
    """{{text}} {{out}}"""


@P.semantic_function(models=["no-such-model"])
def unserved(text: P.Input, out: P.Output):
    """{{text}} {{out}}"""


def call_nothing():
    P.variable("unset").get()


PROGRAMS = {
    "native": lambda: after(broken("x")).get(),
    "timeout": lambda: after(slow("x")).get(),
    "forgetful": lambda: forgetful("x").get(),
    "model": lambda: unserved("x").get(),
    "python": lambda: 1 / 0,
    "nothing": call_nothing,
}

vm.run(PROGRAMS[sys.argv[2]])
print("not reached")
