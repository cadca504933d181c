"""The prompts of one program: its contexts, filled part by part, ahead of time where an input is missing."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, aclosing
from hashlib import blake2b
from typing import Final

from parrot_engine.admission import Claim
from parrot_engine.backends.base import Sampling, Step
from parrot_engine.backends.contexts import output_tokens
from parrot_engine.programs.growing import GrowingValue, encoded
from parrot_engine.programs.inputs import Inputs, InputValue
from parrot_engine.programs.laps import Laps
from parrot_engine.programs.pace import Chunk, next_chunk
from parrot_engine.programs.parts import Part
from parrot_engine.programs.prefill import Prefill, Spent, Target
from parrot_engine.programs.script import (
    INLINE_CHARS,
    INLINE_TRANSFORM_CHARS,
    FillStep,
    GenerateStep,
    Script,
    apply_transforms,
)
from parrot_engine.programs.siblings import Leads
from parrot_engine.programs.tools import Tools
from parrot_engine.programs.window import check_window, reserves, resolve
from parrot_engine.shared import Prefix
from parrot_proto.common.v1.common_pb2 import STAGE_DYNAMIC_PREFILL, STAGE_STATIC_PREFILL
from parrot_proto.engine.v1 import engine_pb2

PAUSED_PRIORITY: Final = 1
"""Added to a program's priority while it waits: what runs goes before."""


class Prompts:
    """See the module. Tokens are noted in the backend's contexts as soon as they are known; their KV is
    computed with the output they belong to, unless the program has to wait for an input first."""

    def __init__(
        self,
        tools: Tools,
        program: engine_pb2.RunProgram,
        script: Script,
        *,
        inputs: Inputs,
        claim: Claim,
        spent: Spent,
        laps: Laps,
    ) -> None:
        self._tools = tools
        self._backend = tools.backend
        self._program = program
        self._script = script
        self._inputs = inputs
        self._claim = claim
        self._spent = spent
        self._laps = laps
        self._known: dict[bytes, list[int]] = {}
        self._tokens: dict[str, list[int]] = {}
        self._inherited: dict[str, int] = {}
        """By context, tokens that are a shared context's."""

    async def look(self) -> None:
        """Reads every value that is there, and refuses the program if it can't fit.

        Raises:
            Fault: see `Inputs.look`, `check_window`, `apply_transforms`.
        """
        parts = {part.key: part for part in self._script.parts() if part.source is not None}
        found = await asyncio.gather(*(self._look(part) for part in parts.values()), return_exceptions=True)
        values: dict[bytes, tuple[Part, InputValue]] = {}
        for (key, part), value in zip(parts.items(), found, strict=True):
            if isinstance(value, BaseException):
                raise value
            if value is not None:
                values[key] = (part, value)
        self._known = await self._encode(values)
        self._check()

    async def fill(self, step: FillStep, shared: AsyncExitStack) -> bool:
        """Adds a step's parts to its context; whether it had to wait for an input.

        Args:
            shared: keeps the shared contexts that are used.

        Raises:
            Fault: see `Inputs.pieces`, `check_window`.
            BackendError: a fill failed.
        """
        if step.shared is not None:
            return await self._fill_shared(step, step.shared, shared)
        waited = False
        await self._open(step.context_id, step.parent_context_id)
        for part in step.parts:
            if part.source is not None and part.key not in self._known:
                waited = True
                if not self._inputs.has_ended(part.source):
                    await self._stream_in(step.context_id, part)
                    continue
                # Computed with what comes after it: a fill for each of many would take a step for each.
                await self._wait_for(part)
            await self._append(step.context_id, self._token_ids(part), private=part.private)
        return waited

    async def open(self, step: GenerateStep) -> None:
        """Makes the context an output is generated from, if it is not there."""
        await self._open(step.context_id, step.parent_context_id)

    async def resume(self, step: GenerateStep) -> None:
        """Adds what an earlier attempt streamed of an output to its context."""
        await self._append(step.context_id, step.resumed, private=True)

    async def compute(self, step: GenerateStep) -> int:
        """Computes the context's KV, for forks of it to share; of how many tokens it was not there."""
        result = await self._backend.fill(
            (),
            step.context_id,
            cache=self._tools.features.prefix_sharing,
            priority=self._program.priority,
            step_ms=self._program.step_ms,
        )
        return result.computed_tokens

    async def fork(self, step: GenerateStep, context_id: str) -> None:
        """A fork of an output's context."""
        await self._open(context_id, step.context_id)

    def own_tokens(self, context_id: str) -> int:
        """The context's length without what it shares with other programs."""
        return len(self._tokens[context_id]) - self.shared_tokens(context_id)

    def shared_tokens(self, context_id: str) -> int:
        """With how many tokens of a shared context it begins."""
        return self._inherited.get(context_id, 0)

    def token_ids(self, context_id: str) -> list[int]:
        """All that a context holds."""
        return list(self._tokens[context_id])

    def went_on(self, context_id: str, generated: list[int], text: str, last: Step) -> None:
        """The context goes on behind an output, which it holds from now on."""
        reason = last.finish_reason or "stop"
        self._tokens[context_id] += output_tokens(self._backend.tokenizer, generated, text, reason)

    async def release(self) -> None:
        """Holds no KV any longer."""
        for context_id in self._script.context_ids() & self._tokens.keys():
            await self._backend.release(context_id)

    def resolve(self, step: GenerateStep) -> Sampling:
        """The sampling of an output whose context is complete.

        Raises:
            Fault: see `window.resolve`.
        """
        left_tokens = self._backend.info.context_window_tokens - len(self._tokens[step.context_id])
        place = next(place for place, found in enumerate(self._script.steps) if found is step)
        return resolve(step, left_tokens, reserves(self._script, self._sizes())[place])

    def _sizes(self) -> dict[bytes, int]:
        return {key: len(token_ids) for key, token_ids in self._known.items()}

    def _check(self) -> None:
        sizes = self._sizes()
        check_window(self._script, sizes, self._backend.tokenizer, self._backend.info)

    async def _look(self, part: Part) -> InputValue | None:
        return await self._inputs.look(part.source) if part.source is not None else None

    async def _encode(self, values: dict[bytes, tuple[Part, InputValue]]) -> dict[bytes, list[int]]:
        """The tokens of values, off the event loop if there are many."""
        tokenizer = self._backend.tokenizer

        def encode_all() -> dict[bytes, list[int]]:
            # A value that fills many holes is encoded once: megabytes times holes would be the end of us.
            return {
                key: tokenizer.encode_value(_transformed(part, value.text))
                for key, (part, value) in values.items()
            }

        chars = sum(len(value.text) for _, value in values.values())
        transformed = any(part.source.transforms for part, _ in values.values() if part.source is not None)
        inline = chars <= (INLINE_TRANSFORM_CHARS if transformed else INLINE_CHARS)
        return encode_all() if inline else await asyncio.to_thread(encode_all)

    def _token_ids(self, part: Part) -> Sequence[int]:
        return self._known[part.key] if part.source is not None else part.token_ids

    async def _open(self, context_id: str, parent_id: str) -> None:
        if context_id not in self._tokens:
            parent = self._tokens[parent_id] if parent_id else ()
            await self._backend.fill((), context_id, parent_id, lazy=True)
            self._tokens[context_id] = list(parent)
            self._inherited[context_id] = self._inherited.get(parent_id, 0)

    async def _append(self, context_id: str, token_ids: Sequence[int], *, private: bool) -> None:
        added = self._grow(context_id, token_ids)
        private_to = self._program.tenant if private else ""
        await self._backend.fill(added, context_id, private_to=private_to, lazy=True)

    def _grow(self, context_id: str, token_ids: Sequence[int]) -> list[int]:
        """What a context grows by: a root's first tokens have in front what every prompt starts with."""
        tokens, added = self._tokens[context_id], list(token_ids)
        if added and not tokens:
            added = self._backend.tokenizer.start_prompt(added)
        tokens += added
        return added

    async def _fill_shared(
        self, step: FillStep, shared: engine_pb2.SharedFill, stack: AsyncExitStack
    ) -> bool:
        context_id, parent_id = step.context_id, step.parent_context_id
        waited = False
        for part in step.parts:
            if part.source is not None and part.key not in self._known:
                waited = True
                await self._wait_for(part)
        tokens = list(self._tokens[parent_id]) if parent_id else []
        own: list[tuple[list[int], bool]] = []
        for part in step.parts:
            added = list(self._token_ids(part))
            if added and not tokens:
                added = self._backend.tokenizer.start_prompt(added)
            tokens += added
            own.append((added, part.private))

        async def fill() -> None:
            for token_ids, private in own:
                private_to = self._program.tenant if private else ""
                await self._backend.fill(token_ids, context_id, parent_id, private_to=private_to, lazy=True)

        # What has to wait for its inputs computes what is before them meanwhile.
        goes_on = any(not self._lacks(later.parts) for later in self._script.shared_after(step))
        prefix = Prefix(
            context_id,
            shared.prefix_hash,
            tokens,
            shared.steps_to_next_use or None,
            priority=self._program.priority,
            step_ms=self._program.step_ms,
            ancestors=self._script.shared_before(step),
            goes_on=goes_on,
            ahead=self._lacks(self._script.parts()),
        )
        await stack.enter_async_context(self._tools.shared.using(prefix, fill))
        self._claim.shared[context_id] = sum(len(token_ids) for token_ids, _ in own)
        self._tokens[context_id] = tokens
        self._inherited[context_id] = len(tokens)
        return waited

    def _lacks(self, parts: Iterable[Part]) -> bool:
        """Whether some of these have no value yet."""
        return any(part.source is not None and part.key not in self._known for part in parts)

    async def _wait_for(self, part: Part) -> None:
        """Waits for a pending variable's whole value."""
        if part.source is None:
            return
        async with aclosing(self._inputs.pieces(part.source)) as pieces:
            text = "".join([piece async for piece in pieces])
        self._laps.waited(part.source.variable_id)
        self._known[part.key] = await encoded(self._backend.tokenizer.encode_value, text)
        self._check()

    async def _stream_in(self, context_id: str, part: Part) -> None:
        """Fills a pending variable as it comes, prefilling what is there meanwhile."""
        if part.source is None:
            return
        prefill = self._prefill(context_id)
        growing = GrowingValue(self._backend.tokenizer.value_encoder())
        with self._reading(context_id, part.source) as leads:
            try:
                if self._tools.features.static_prefill and self._tokens[context_id] and leads():
                    prefill.begin(self.own_tokens(context_id))
                async with aclosing(self._inputs.pieces(part.source)) as pieces:
                    async for piece in pieces:
                        added = self._grow(context_id, await growing.push(piece))
                        self._check_length(context_id, part, growing)
                        chunk = self._chunk(part.source, len(growing.token_ids)) if leads() else None
                        prefill.add(added, chunk, self.own_tokens(context_id))
                self._laps.waited(part.source.variable_id)
                rest = self._grow(context_id, await growing.finish())
                prefill.add(rest, None, self.own_tokens(context_id))
                self._known[part.key] = growing.token_ids
                self._check()
                await prefill.settle()
                self._laps.filled(STAGE_DYNAMIC_PREFILL if prefill.dynamic else STAGE_STATIC_PREFILL)
            finally:
                await prefill.stop()

    def _reading(self, context_id: str, source: engine_pb2.VariableSource) -> AbstractContextManager[Leads]:
        """While a part is read behind what a context holds; without a prefix cache nobody has siblings."""
        own = None if self._tools.features.prefix_sharing else context_id
        # Asked for with every piece: a digest, since a tuple's hash is made anew each time.
        before = blake2b(array("I", self._tokens[context_id]).tobytes(), digest_size=16).digest()
        of = (source.variable_id, tuple(source.transforms), before)
        return self._tools.siblings.reading(self._program.tenant, *of, own)

    def _chunk(self, source: engine_pb2.VariableSource, made: int) -> Chunk | None:
        """What of a value may be computed now; None: nothing.

        Of a value that has ended nothing is: the output's own request takes what is left along.
        """
        if not self._tools.features.dynamic_prefill or self._inputs.has_ended(source):
            return None
        return next_chunk(made, source.expected_tokens)

    def _check_length(self, context_id: str, part: Part, growing: GrowingValue) -> None:
        """Refuses what outgrows the window while it still grows."""
        if len(self._tokens[context_id]) >= self._backend.info.context_window_tokens:
            self._known[part.key] = growing.token_ids
            self._check()

    def _prefill(self, context_id: str) -> Prefill:
        target = Target(
            context_id,
            self._program.tenant,
            self._program.priority + PAUSED_PRIORITY,
            self._tools.features.prefix_sharing,
            self._program.step_ms,
        )
        return Prefill(self._tools, self._claim, self._spent, target)


def _transformed(part: Part, text: str) -> str:
    source = part.source
    return text if source is None else apply_transforms(text, source.transforms, source.variable_id)
