"""The table of contexts every backend keeps: which tokens a name stands for, and who uses it.

Tokens live here, with the tenant they are private to; where their KV is, only the backend knows. It
may note what it knows in `held` and `kv_parent_id`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from parrot_engine.backends.base import ContextError, FinishReason
from parrot_engine.text.tokens import PromptTokenizer


@dataclass(slots=True, eq=False)
class Context:
    """One context.

    Attributes:
        tenant: whose its private tokens are; empty while all are public.
        held: the backend was asked to hold its KV and may still do so.
        kv_parent_id: the nearest context up the line whose KV was held when this was forked; empty:
            none.
    """

    context_id: str
    parent_id: str = ""
    tokens: list[int] = field(default_factory=list)
    tenant: str = ""
    held: bool = False
    kv_parent_id: str = ""
    _in_use: bool = False
    _private_from: int = 0

    @property
    def public_tokens(self) -> int:
        """How many tokens stand before the first private one."""
        return self._private_from if self.tenant else len(self.tokens)

    def append(self, token_ids: Sequence[int], private_to: str = "") -> None:
        """Adds tokens; behind the first private one all are."""
        if private_to and token_ids and not self.tenant:
            self.tenant, self._private_from = private_to, len(self.tokens)
        self.tokens.extend(token_ids)

    def fork(self, context_id: str) -> Context:
        """A copy under another name."""
        return Context(
            context_id,
            parent_id=self.context_id,
            tokens=list(self.tokens),
            tenant=self.tenant,
            kv_parent_id=self.context_id if self.held else self.kv_parent_id,
            _private_from=self._private_from,
        )

    def check_idle(self) -> None:
        """Raises `ContextError` if it is in use."""
        if self._in_use:
            raise ContextError(f"context {self.context_id} is in use")

    @contextmanager
    def in_use(self) -> Iterator[Context]:
        """Nobody else's until the block ends; as it was before if that ends by an exception."""
        length, tenant = len(self.tokens), self.tenant
        self._in_use = True
        try:
            yield self
        except BaseException:
            del self.tokens[length:]
            self.tenant = tenant
            raise
        finally:
            self._in_use = False


class ContextTable:
    """Names to contexts, under the locking rules and the tenants' rules of `Backend`."""

    def __init__(self) -> None:
        self._contexts: dict[str, Context] = {}

    def __len__(self) -> int:
        return len(self._contexts)

    def __contains__(self, context_id: str) -> bool:
        return context_id in self._contexts

    def get(self, context_id: str) -> Context | None:
        """The context of that name, to look at; None: there is none."""
        return self._contexts.get(context_id)

    @contextmanager
    def use(self, context_id: str, parent_context_id: str, private_to: str = "") -> Iterator[Context]:
        """The context, made if need be, to read or to append to, and nobody else's until the block ends.

        Args:
            private_to: whose the tokens are that will be appended; empty: anybody's.

        Raises:
            ContextError: see `Backend`; nothing is made then.
        """
        context = self._find(context_id, parent_context_id)
        context.check_idle()
        _check_tenant(context, private_to)
        self._contexts[context_id] = context
        with context.in_use():
            yield context

    def free(self, context_id: str) -> Context | None:
        """Forgets a context and returns it; None: it is already forgotten.

        Raises:
            ContextError: it is in use.
        """
        context = self._contexts.get(context_id)
        if context is not None:
            context.check_idle()
            del self._contexts[context_id]
        return context

    def _find(self, context_id: str, parent_id: str) -> Context:
        context = self._contexts.get(context_id)
        if context is None:
            return self._parent(parent_id).fork(context_id) if parent_id else Context(context_id)
        if parent_id not in ("", context.parent_id):
            raise ContextError(
                f"context {context_id} has the parent {context.parent_id!r}, not {parent_id!r}"
            )
        return context

    def _parent(self, parent_id: str) -> Context:
        parent = self._contexts.get(parent_id)
        if parent is None:
            raise ContextError(f"there is no context {parent_id} to fork")
        parent.check_idle()
        return parent


def _check_tenant(context: Context, private_to: str) -> None:
    if private_to and context.tenant not in ("", private_to):
        # Neither tenant is named: the message may reach either.
        raise ContextError(f"context {context.context_id} is private to another tenant")


def output_tokens(
    tokenizer: PromptTokenizer, token_ids: list[int], text: str, reason: FinishReason
) -> list[int]:
    """What a context holds of an output: its text as tokens, and no control token.

    The generated ids are kept where they are the text, so that their KV is found again; where a
    stop text cut the text off within them, it is tokenized anew.
    """
    if reason == "stop_text":
        return tokenizer.encode_value(text)
    if reason == "stop":
        token_ids = token_ids[:-1]
    return [token for token in token_ids if token not in tokenizer.control_ids]
