"""Native functions between semantic ones: what they close over, several outputs, variables set later."""

import asyncio
import sys
import threading

from parrot import P

vm = P.VirtualMachine(core_http_addr=sys.argv[1])
SUFFIX = "!"


@P.semantic_function()
def name_one(topic: P.Input, name: P.Output(P.SamplingConfig(max_gen_length=6))):
    """Name one {{topic}}: {{name}}."""


@P.native_function()
async def decorate(name: P.Input, times: int, loud: P.Output, length: P.Output):
    loud.set(name.upper() + SUFFIX * times)
    await asyncio.sleep(0)
    length.set(str(len(name)))


@P.native_function(timeout=30.0)
def join(left: P.Input, right: P.Input, both: P.Output):
    both.set(f"{left}|{right}")


def main():
    name = name_one(topic="bird")
    loud, length = decorate(name, 3)
    later = P.variable(name="later")
    both = join(loud, later)
    again = name_one(both)
    later.set("set later")
    text = both.get()
    assert text == f"{name.get().upper()}!!!|set later", text
    assert int(length.get()) == len(name.get())
    assert again.get()
    print("both:", text)
    in_thread = []
    thread = threading.Thread(target=lambda: in_thread.append(join("a", "b").get()))
    thread.start()
    thread.join()
    print("thread:", in_thread[0])


vm.run(main)
