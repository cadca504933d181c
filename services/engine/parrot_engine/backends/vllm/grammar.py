"""Guides: what the output must be, and how a guide goes on behind text that was generated before.

vLLM compiles a guide in a thread of its engine process and lets the request wait for it. Here the
tokens of a resumed output are accepted by the compiled grammar before the first new token is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vllm.v1.request import RequestStatus

from parrot_engine.backends.vllm.wire import Errand


class Resumption:
    """Leads grammars past resumed text, and keeps why a guided request failed."""

    def __init__(self) -> None:
        self._resumed: set[str] = set()
        self._why: dict[str, str] = {}

    def refuses(self, request: Any, errand: Errand | None) -> bool:
        """Whether a request can't be generated under its guide; asked each time it might be scheduled."""
        guided = request.structured_output_request
        if guided is None or request.request_id in self._resumed:
            return request.request_id in self._why
        grammar = guided.grammar
        if grammar is None:
            return False
        self._resumed.add(request.request_id)
        if isinstance(grammar, Exception):
            self._why[request.request_id] = f"the guide can't be used: {grammar}"
        elif errand is not None and not grammar.accept_tokens(request.request_id, errand.resumed):
            self._why[request.request_id] = "the guide does not allow the text the output is to go on from"
        return request.request_id in self._why

    def explain(self, outputs: Mapping[int, Any]) -> None:
        """Says in the last output of a request that was refused why it was."""
        if not self._why:
            return
        for batch in outputs.values():
            for output in batch.outputs:
                why = self._why.pop(output.request_id, None)
                if why is not None:
                    output.stop_reason = why

    def forget(self, request: Any) -> None:
        """The request has ended."""
        self._resumed.discard(request.request_id)
        if request.status is RequestStatus.FINISHED_ABORTED:
            # Nobody is told any more.
            self._why.pop(request.request_id, None)
