"""`python -m parrot_engine.sandbox.host`: runs functions that it is sent, one at a time, until nobody asks.

It stands between the engine and the interpreter: what comes out of there is made Python objects here, and
only bounded text goes on. Its limits are the interpreter's process's too, which inherits them. Requests and
replies are JSON, each behind its length. Hardly anything of the engine is imported: such a process is cheap.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
from typing import IO, Any, Final, NoReturn

from pydantic_monty import Monty, MontyCrashedError, MontyError, MontyRuntimeError, MontySession

from parrot_engine.sandbox.confine import confine
from parrot_engine.sandbox.wire import LENGTH

SCRIPT: Final = "function.py"
RECURSION: Final = 500
GRACE_S: Final = 0.5
"""How much longer than its limit a function has before its process is killed."""
MESSAGE_CHARS: Final = 1_000

_OUT_OF_TIME: Final = "TimeoutError: feed time limit exceeded"
Message = dict[str, Any]


def main() -> NoReturn:
    """Serves until its input ends. Arguments: the most bytes a function may ask for, and a reply hold."""
    memory_bytes, reply_bytes = int(sys.argv[1]), int(sys.argv[2])
    confine(memory_bytes)
    requests: queue.Queue[Message] = queue.Queue()
    replies = sys.stdout.buffer
    with Monty(
        min_processes=1,
        max_processes=1,
        max_checkouts_per_worker=1,
        feed_duration_limit_grace=GRACE_S,
    ) as interpreters:
        _send(replies, {"ready": True})
        threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
        while True:
            reply = _run(interpreters, requests.get())
            if _size(reply) > reply_bytes:
                reply = {"error": f"what it returns exceeds {reply_bytes:,} bytes", "too_large": True}
            _send(replies, reply)


def _listen(stream: IO[bytes], requests: queue.Queue[Message]) -> None:
    """Takes requests in. When nobody can ask any more, whatever still runs ends, the interpreter's too."""
    while (request := _receive(stream)) is not None:
        requests.put(request)
    os.killpg(0, signal.SIGKILL)


def _run(interpreters: Monty, request: Message) -> Message:
    try:
        with interpreters.checkout(
            script_name=SCRIPT,
            limits={
                "max_feed_duration_secs": request["timeout_s"],
                "max_memory": request["memory_bytes"],
                "max_recursion_depth": RECURSION,
                "max_total_sleep_secs": 0.0,
            },
            os_policy={"sleep": "zero"},
        ) as session:
            return _made(_called(session, request), request["outputs"])
    except MontyCrashedError as error:
        return {"error": "it was stopped: its time was over" if error.timed_out else "its process died"}
    except MontyRuntimeError as error:
        return {"error": _shown(error)}
    except MontyError as error:
        return {"error": f"{type(error).__name__.removeprefix('Monty')}: {error}"[:MESSAGE_CHARS]}


def _called(session: MontySession, request: Message) -> object:
    """What the function returns; its inputs are bound to names of their own, whatever they are called."""
    names = {name: f"parrot_input_{place}" for place, name in enumerate(request["inputs"])}
    arguments = ", ".join(f"{name}={bound}" for name, bound in names.items())
    return session.feed_run(
        f"{request['source']}\n{request['entry']}({arguments})",
        inputs={bound: request["inputs"][name] for name, bound in names.items()},
        print_callback=lambda stream, text: None,
    )


def _made(returned: object, outputs: list[str]) -> Message:
    if isinstance(returned, str) and len(outputs) == 1:
        return {"outputs": {outputs[0]: returned}}
    if isinstance(returned, dict) and set(returned) == set(outputs):
        wrong = [name for name, text in returned.items() if not isinstance(text, str)]
        if not wrong:
            return {"outputs": returned}
    wanted = "a str" if len(outputs) == 1 else f"a dict with a str for each of {', '.join(outputs)}"
    return {"error": f"it returns {type(returned).__name__}; it has to return {wanted}"}


def _shown(error: MontyRuntimeError) -> str:
    """The error, and the line of the source it is about."""
    told = str(error)
    if told.startswith(_OUT_OF_TIME):
        return "it ran longer than it may"
    lines = [frame.line for frame in error.traceback()[1:]]
    return f"{told[:MESSAGE_CHARS]} (line {lines[-1]})" if lines else told[:MESSAGE_CHARS]


def _size(reply: Message) -> int:
    return sum(len(text.encode(errors="replace")) for text in reply.get("outputs", {}).values())


def _receive(stream: IO[bytes]) -> Message | None:
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (length,) = LENGTH.unpack(head)
    message: Message = json.loads(stream.read(length))
    return message


def _send(stream: IO[bytes], message: Message) -> None:
    data = json.dumps(message).encode()
    stream.write(LENGTH.pack(len(data)) + data)
    stream.flush()


if __name__ == "__main__":
    main()
