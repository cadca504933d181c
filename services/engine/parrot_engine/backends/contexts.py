"""The table of contexts every backend keeps: which tokens a name stands for, and who uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from parrot_engine.backends.base import ContextError, FinishReason
from parrot_engine.text.tokens import PromptTokenizer


@dataclass(slots=True)
class _Context:
    parent_id: str
    tokens: list[int] = field(default_factory=list)
    in_use: bool = False


class ContextTable:
    """Names to tokens, under the locking rules of `Backend`."""

    def __init__(self) -> None:
        self._contexts: dict[str, _Context] = {}

    def __len__(self) -> int:
        return len(self._contexts)

    @contextmanager
    def use(self, context_id: str, parent_context_id: str) -> Iterator[list[int]]:
        """The context's tokens, to read or to append to, and nobody else's until the block ends.

        Raises:
            ContextError: see `Backend`.
        """
        context = self._find(context_id, parent_context_id)
        context.in_use = True
        try:
            yield context.tokens
        finally:
            context.in_use = False

    def free(self, context_id: str) -> None:
        """Forgets a context; one that is not there is already forgotten.

        Raises:
            ContextError: it is in use.
        """
        context = self._contexts.get(context_id)
        if context is not None:
            _check_idle(context_id, context)
            del self._contexts[context_id]

    def _find(self, context_id: str, parent_id: str) -> _Context:
        context = self._contexts.get(context_id)
        if context is None:
            context = self._fork(parent_id) if parent_id else _Context("")
            self._contexts[context_id] = context
        elif parent_id not in ("", context.parent_id):
            raise ContextError(
                f"context {context_id} has the parent {context.parent_id!r}, not {parent_id!r}"
            )
        _check_idle(context_id, context)
        return context

    def _fork(self, parent_id: str) -> _Context:
        parent = self._contexts.get(parent_id)
        if parent is None:
            raise ContextError(f"there is no context {parent_id} to fork")
        _check_idle(parent_id, parent)
        return _Context(parent_id, list(parent.tokens))


def _check_idle(context_id: str, context: _Context) -> None:
    if context.in_use:
        raise ContextError(f"context {context_id} is in use")


def output_tokens(
    tokenizer: PromptTokenizer, token_ids: list[int], text: str, reason: FinishReason
) -> list[int]:
    """What a context holds of an output: its text as tokens, and no control token.

    The generated ids are kept where they are the text, so that their KV is found again; where a
    stop text cut the text off within them, it is tokenized anew.
    """
    if reason == "stop_text":
        return tokenizer.encode_value(text)
    return [token for token in token_ids if token not in tokenizer.control_ids]
