"""A chat that goes on where the last round ended, and calls with several outputs."""

import sys

from parrot import P

vm = P.VirtualMachine(core_http_addr=sys.argv[1], mode="release")
begin = vm.import_function("begin_chat", "library.writing")
chat_round = vm.import_function("chat_round", "library.writing")
joke = vm.import_function("joke", "library.writing")


async def main():
    begin.invoke_statefully(context_successor=chat_round)
    while (human := input("> ")) != "exit":
        ai = chat_round.invoke_statefully(context_successor=chat_round, human=human)
        print("ai:", ai.get())


def laugh():
    told, explained = joke("parrots")
    print("explained:", explained.get())
    print("told:", told.get())


vm.run(main)
vm.run(laugh)
