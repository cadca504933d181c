"""An OpenAI-compatible server that writes as many tokens as it is asked for, streamed or whole.

Each token is a word that says which answer it is of. A prompt may name a script instead (see
`tools.scripted_upstream`), and requests may be held until something is the case.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from tools.scripted_upstream import Script, ScriptedUpstream, _EndError, _send

Hold = Callable[[dict[str, Any]], Awaitable[object]]
_MARK: Final = re.compile(r"#(\w+)")


async def _at_once(request: dict[str, Any]) -> None:
    """Holds nothing."""


class CountingUpstream(ScriptedUpstream):
    """See the module. A prompt with `#name` is answered by `name.0 name.1` and so on."""

    def __init__(self, scripts: dict[str, Any] | None = None, *, port: int = 0) -> None:
        super().__init__(scripts, model="counting", port=port)
        self.hold: Hold = _at_once
        self._changed = asyncio.Event()

    def script_for(self, request: dict[str, Any]) -> Script:
        """A word a token."""
        found = super().script_for(request)
        if not (found and found[0].get("status") == 404):
            return found
        name = marked(request)
        words: Script = [{"text": f"{name}.{number} "} for number in range(request["max_tokens"])]
        words[-1]["finish_reason"] = "length"
        return words

    async def until_idle(self) -> None:
        """Returns once no request is open."""
        while self.state.open:
            self._changed.clear()
            await self._changed.wait()

    async def _complete(
        self, request: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if isinstance(request["prompt"], list):
            # OpenAI's own client sends one prompt as a list of it, too.
            request = {**request, "prompt": request["prompt"][0]}
        self.state.requests.append(request)
        self.state.open += 1
        try:
            await self._held(request, reader)
            if request.get("stream"):
                self.state.requests.remove(request)
                await super()._complete(request, reader, writer)
            else:
                _send(writer, self._whole(request, writer))
        finally:
            self.state.open -= 1
            self._changed.set()

    async def _held(self, request: dict[str, Any], reader: asyncio.StreamReader) -> None:
        holding = asyncio.ensure_future(self.hold(request))
        leaving = asyncio.ensure_future(reader.read(1))
        try:
            await asyncio.wait((holding, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not holding.done():
                self.state.left_early += 1
                raise _EndError
            holding.result()
        finally:
            for task in (holding, leaving):
                task.cancel()
            await asyncio.gather(holding, leaving, return_exceptions=True)

    def _whole(self, request: dict[str, Any], writer: asyncio.StreamWriter) -> dict[str, Any]:
        """The script as one answer."""
        script = self.script_for(request)
        if any("close" in action for action in script):
            writer.transport.abort()
            raise _EndError
        if "status" in script[0]:
            return script[0]
        if "raw" in script[0]:
            return {"status": 200, "body": script[0]["raw"]}
        texts = [action for action in script if "text" in action]
        reason = next((action["finish_reason"] for action in texts if "finish_reason" in action), "stop")
        choice = {"index": 0, "text": "".join(action["text"] for action in texts), "finish_reason": reason}
        usage: Mapping[str, Any] = {"prompt_tokens": len(request["prompt"]), "completion_tokens": len(texts)}
        for action in script:
            usage = action.get("usage", usage)
        body = {"id": "cmpl-counting", "object": "text_completion", "created": 0, "model": "counting"}
        return {"status": 200, "body": {**body, "choices": [choice], "usage": usage}}


def marked(request: dict[str, Any]) -> str:
    """The first name that a request's prompt marks."""
    found = _MARK.search(request["prompt"])
    return found[1] if found else "word"
