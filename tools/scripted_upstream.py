"""An OpenAI-compatible server without a model: it streams exactly what a script says, faults included.

Usage: python tools/scripted_upstream.py [--port PORT] [--scripts FILE] [--model NAME] [--owner NAME]
                                         [--window-tokens N]

It answers GET /v1/models and streamed POST /v1/completions. Which script a completion follows: the
one whose name stands in the prompt as `script:NAME`, else `default`. FILE holds a JSON object of
scripts by name; PUT /scripts/NAME defines one while the server runs. GET /state tells what was
asked, how many streams are open, and how many the client left early.

A script is a list of actions, carried out one after the other:

  {"text": "The harbour ", "finish_reason": null}   a chunk; further members go into its choice
  {"text": "w{n:03d} ", "repeat": 500}              as many chunks, numbered
  {"usage": {"prompt_tokens": 5}}                   a chunk without choices
  {"wait_s": 60}                                    nothing, for so long
  {"comment": "alive"}                              a line that is no event
  {"error": {"message": "out of memory"}}           an error within the stream
  {"raw": "data: {oops\\n\\n"}                        any bytes, as text
  {"status": 429, "headers": {}, "body": "busy"}    as the first action: a refusal instead of a stream
  {"close": true}                                   the connection ends within the answer
  {"reset": true}                                   the same by a TCP reset

A script that ends otherwise is completed: finish reason `stop` unless a chunk gave one, usage if it
was asked for, `[DONE]`. {"end": true} as its last action ends the answer there, without these.
A script {"in_turn": [SCRIPT, ...]} follows the first at its first use, and so on; the last one stays.
A script named `models` is what GET /v1/models answers with: a status and a body.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

Action = dict[str, Any]
Script = list[Action]

ACTIONS: Final = frozenset(
    ("text", "finish_reason", "usage", "wait_s", "comment", "error", "raw", "status", "close", "reset", "end")
)
REMEMBERED: Final = 1000
"""Requests that GET /state shows."""
HEAD_BYTES: Final = 64 << 10
_NAME: Final = re.compile(r"script:([\w-]+)")
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER with no time to linger: closing sends a reset."""


class _EndError(Exception):
    """The script ended the answer."""


@dataclass(slots=True)
class State:
    """What happened so far.

    Attributes:
        requests: the bodies of completions, the latest last.
        left_early: streams whose client went before their end.
        keys: the authorizations that were shown.
    """

    requests: list[dict[str, Any]] = field(default_factory=list)
    open: int = 0
    left_early: int = 0
    keys: set[str] = field(default_factory=set)


class ScriptedUpstream:
    """The server. Used as `async with`, it listens inside."""

    def __init__(
        self,
        scripts: dict[str, Any] | None = None,
        *,
        model: str = "scripted",
        owner: str = "scripted",
        window_tokens: int = 32_768,
        port: int = 0,
    ) -> None:
        """`port` 0: any that is free."""
        self._scripts = {name: _in_turn(script) for name, script in (scripts or {}).items()}
        self._model = model
        self._listed = {"id": model, "object": "model", "owned_by": owner, "max_model_len": window_tokens}
        self._port = port
        self._server: asyncio.Server | None = None
        self._answers: set[asyncio.Task[None]] = set()
        self.state = State()

    @property
    def url(self) -> str:
        """What an OpenAI client takes for its base URL."""
        return f"http://127.0.0.1:{self._port}/v1"

    def define(self, name: str, script: Any) -> None:
        """Defines a script, or another one under its name."""
        self._scripts[name] = _in_turn(script)

    def turns_left(self, name: str) -> int:
        """Scripts that are left under a name; the last one stays."""
        return len(self._scripts.get(name, ()))

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port, limit=HEAD_BYTES)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for answer in self._answers:
            answer.cancel()
        await asyncio.gather(*self._answers, return_exceptions=True)

    async def serve_forever(self) -> None:
        """Returns when cancelled."""
        if self._server is not None:
            await self._server.serve_forever()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)
        try:
            while True:
                method, path, headers, body = await _read_request(reader)
                if "authorization" in headers:
                    self.state.keys.add(headers["authorization"])
                try:
                    await self._answer(method, path, body, reader, writer)
                except ValueError as error:
                    _send(writer, {"status": 400, "body": {"error": {"message": str(error)}}})
        except (ConnectionError, asyncio.IncompleteReadError, _EndError):
            pass  # Either side may leave at any time; that is what this server is for.
        finally:
            writer.close()

    async def _answer(
        self, method: str, path: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if (method, path) == ("POST", "/v1/completions"):
            await self._complete(json.loads(body), reader, writer)
        elif (method, path) == ("GET", "/v1/models"):
            answer = self._next_script("models") or [{"status": 200, "body": {"data": [self._listed]}}]
            _send(writer, answer[0])
        elif method == "PUT" and path.startswith("/scripts/"):
            self.define(path.removeprefix("/scripts/"), json.loads(body))
            _send(writer, {"status": 200, "body": {}})
        elif (method, path) == ("GET", "/state"):
            state = self.state
            told = {"requests": state.requests, "open": state.open, "left_early": state.left_early}
            _send(writer, {"status": 200, "body": told})
        else:
            _send(writer, {"status": 404, "body": {"error": {"message": f"there is no {method} {path}"}}})
        await writer.drain()

    async def _complete(
        self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.state.requests = [*self.state.requests[1 - REMEMBERED :], request]
        script = self.script_for(request)
        if script and "status" in script[0]:
            _send(writer, script[0])
            return
        stream = _Stream(writer, request, self._model)
        following = asyncio.create_task(stream.follow(script))
        leaving = asyncio.create_task(reader.read(1))
        self.state.open += 1
        try:
            await asyncio.wait((following, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                self.state.left_early += 1
                raise _EndError
            following.result()
            await writer.drain()
            raise _EndError
        finally:
            self.state.open -= 1
            for task in (following, leaving):
                task.cancel()
            await asyncio.gather(following, leaving, return_exceptions=True)

    def script_for(self, request: dict[str, Any]) -> Script:
        """What a completion follows. A subclass may make it up from the request."""
        prompt = request.get("prompt")
        named = _NAME.findall(prompt) if isinstance(prompt, str) else []
        for name in (*reversed(named), "default"):
            script = self._next_script(name)
            if script is not None:
                return script
        return [{"status": 404, "body": {"error": {"message": "there is no script for this prompt"}}}]

    def _next_script(self, name: str) -> Script | None:
        turns = self._scripts.get(name)
        if turns is None:
            return None
        return turns.pop(0) if len(turns) > 1 else turns[0]


class _Stream:
    """One answer that is a stream."""

    def __init__(self, writer: asyncio.StreamWriter, request: dict[str, Any], model: str) -> None:
        self._writer = writer
        self._wants_usage = bool((request.get("stream_options") or {}).get("include_usage"))
        self._frame = {"id": "cmpl-scripted", "object": "text_completion", "created": 0, "model": model}
        self._chunks = 0
        self._finished = False
        self._counted = False

    async def follow(self, script: Script) -> None:
        """Carries the actions out, and completes what they leave open.

        Raises:
            _EndError: the connection has ended with the answer.
        """
        self._writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
        )
        await self._writer.drain()
        for action in script:
            if action.get("end"):
                break
            await self._do(action)
        else:
            self._complete()
        self._writer.write(b"0\r\n\r\n")

    async def _do(self, action: Action) -> None:
        if "wait_s" in action:
            await asyncio.sleep(action["wait_s"])
        elif action.get("close") or action.get("reset"):
            self._cut(hard=bool(action.get("reset")))
        else:
            for data in self._data(action):
                self._write(data)
                await self._writer.drain()

    def _data(self, action: Action) -> Iterator[str]:
        if "text" in action or "finish_reason" in action:
            yield from self._choices(action)
        elif "usage" in action:
            self._counted = True
            yield _event(self._frame | {"choices": [], "usage": action["usage"]})
        elif "error" in action:
            yield _event({"error": action["error"]})
        elif "comment" in action:
            yield f": {action['comment']}\n\n"
        else:
            yield action["raw"]

    def _choices(self, action: Action) -> Iterator[str]:
        more = {name: value for name, value in action.items() if name not in {"text", "repeat"}}
        self._finished = self._finished or bool(action.get("finish_reason"))
        text = action.get("text", "")
        for number in range(action.get("repeat", 1)):
            said = text.format(n=number) if "repeat" in action else text
            self._chunks += 1
            choice = {"index": 0, "text": said, "finish_reason": None, "logprobs": None} | more
            yield _event(self._frame | {"choices": [choice]})

    def _complete(self) -> None:
        if not self._finished:
            for data in self._choices({"text": "", "finish_reason": "stop"}):
                self._write(data)
        if self._wants_usage and not self._counted:
            usage = {"prompt_tokens": 0, "completion_tokens": self._chunks}
            self._write(_event(self._frame | {"choices": [], "usage": usage}))
        self._write("data: [DONE]\n\n")

    def _write(self, text: str) -> None:
        data = text.encode("utf-8", "surrogatepass")
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _cut(self, *, hard: bool) -> None:
        if hard:
            sock: socket.socket = self._writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._writer.transport.abort()
        raise _EndError


def _event(message: dict[str, Any]) -> str:
    return f"data: {json.dumps(message)}\n\n"


def _in_turn(script: Any) -> list[Script]:
    """Scripts for one use after the other.

    Raises:
        ValueError: it is no script.
    """
    turns = script["in_turn"] if isinstance(script, dict) and "in_turn" in script else [script]
    if not turns or not all(isinstance(turn, list) for turn in turns):
        raise ValueError("a script is a list of actions, or an object with such lists in turn")
    for action in (action for turn in turns for action in turn):
        if not isinstance(action, dict) or ACTIONS.isdisjoint(action):
            raise ValueError(f"there is no action {action}; there are: {', '.join(sorted(ACTIONS))}")
    return list(turns)


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes]:
    """Method, path, headers by lower-case name, and body of the next request.

    Raises:
        asyncio.IncompleteReadError: the client is gone.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ", 2)
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return method, path, headers, body


def _send(writer: asyncio.StreamWriter, answer: Action) -> None:
    """A whole answer, JSON unless its body is a text."""
    body = answer.get("body", "")
    data = (body if isinstance(body, str) else json.dumps(body)).encode()
    kind = "text/plain" if isinstance(body, str) else "application/json"
    headers = {"Content-Type": kind, "Content-Length": str(len(data))} | answer.get("headers", {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {answer['status']} Scripted\r\n{lines}\r\n".encode() + data)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command's arguments."""
    summary, _, rest = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary,
        epilog=rest.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--port", type=int, default=8000, help="on 127.0.0.1 (default: 8000)")
    parser.add_argument("--scripts", type=Path, help="a JSON file of scripts by name")
    parser.add_argument("--model", default="scripted", help="the model's name (default: scripted)")
    parser.add_argument("--owner", default="scripted", help="what /v1/models says of its owner")
    parser.add_argument("--window-tokens", type=int, default=32_768, help="the model's window")
    return parser.parse_args(argv)


async def serve(arguments: argparse.Namespace) -> None:
    """Serves until cancelled."""
    scripts = json.loads(arguments.scripts.read_text()) if arguments.scripts else {}
    upstream = ScriptedUpstream(
        scripts,
        model=arguments.model,
        owner=arguments.owner,
        window_tokens=arguments.window_tokens,
        port=arguments.port,
    )
    async with upstream:
        print(f"serving {arguments.model} at {upstream.url}", flush=True)
        await upstream.serve_forever()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(parse_arguments()))
