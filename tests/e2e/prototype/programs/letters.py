"""In the prototype's last style: imported functions, chains, fan-out, criteria, both kinds of programs."""

import asyncio
import sys

from parrot import P

vm = P.VirtualMachine(core_http_addr=sys.argv[1], mode="debug")

draft = vm.import_function("draft", "library.writing")
polish = vm.import_function("polish", "library.writing")


def main():
    letter = draft("the harbour", word_limit=12)
    better = polish(letter=letter, tone="calm")
    also = polish(letter, tone="brisk")
    print("calm:", better.get(P.PerformanceCriteria.LATENCY))
    print("brisk:", also.get())
    print("letter:", letter.get(P.PerformanceCriteria.THROUGHPUT))


async def amain(topic):
    letters = [draft(f"{topic} {number}", 5) for number in range(3)]
    texts = await asyncio.gather(*[letter.aget() for letter in letters])
    joined = polish("\n".join(texts), tone="calm")
    print("joined:", await joined.aget())


seconds = vm.run(main, timeit=True)
vm.run(amain, args=["ships"])
print("timed:", seconds > 0, vm.stat_run_time > 0, vm.session_registered)
