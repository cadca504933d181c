"""Native functions in this SDK's own sessions: in the bodies of maps and loops, and under conditions."""

import json
import logging
import sys

import parrot as P

logging.getLogger("parrot").setLevel(logging.ERROR)  # The traceback below is no news.


@P.native_function()
def shout(text: P.Input, loud: P.Output):
    loud.set(text.upper() + "!")


@P.native_function()
def pair(left: P.Input, right: P.Input, both: P.Output):
    both.set(f"{left}={right}")


@P.native_function()
def longer(text: P.Input, more: P.Output, verdict: P.Output):
    more.set(text + "x")
    verdict.set("enough" if len(text) >= 3 else "again")


@P.native_function(timeout=5)
def refuse(text: P.Input, out: P.Output):
    raise ValueError(text)


def each(word):
    return pair(shout(word), word)


def grow(text):
    more, verdict = longer(text)
    return more, P.when(verdict, equals="enough")


with P.Session(sys.argv[1]):
    pairs = P.map(each, [f"w{number}" for number in range(20)])
    grown = P.loop(grow, P.variable(content=""), max_rounds=9)
    failed = P.map(refuse, ["no"])
    print("pairs:", json.dumps(pairs.get()) == json.dumps([f"W{n}!=w{n}" for n in range(20)]))
    print("grown:", grown.get())
    try:
        failed.get()
    except P.CallFailed as error:
        print("failed:", error.cause)
