"""The link to vLLM's engine process: starts it, sends requests and calls, translates its errors."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import structlog

from parrot_engine.backends.base import BackendDeadError, BackendError, ModelInfo
from parrot_engine.backends.vllm import arguments
from parrot_engine.backends.vllm.options import VllmOptions
from parrot_engine.backends.vllm.wire import Books
from parrot_engine.models import ModelFolder
from parrot_kernels import vllm_backend

DEATH_POLL_S: Final = 0.2

log = structlog.get_logger()


class VllmLink:
    """One engine process of vLLM's, running one model."""

    def __init__(self, llm: Any, info: ModelInfo) -> None:
        self.info = info
        self._llm = llm
        self._request_ids = itertools.count()
        self._calls: set[asyncio.Task[None]] = set()

    @classmethod
    def load(
        cls,
        options: VllmOptions,
        folder: ModelFolder,
        note: Callable[[Books], None],
        go_on: Callable[[], bool],
    ) -> VllmLink:
        """Starts the process and loads the model; takes tens of seconds, so not on the event loop.

        Args:
            note: told of the KV memory's books after each step.
            go_on: asked before the process is started.

        Raises:
            BackendError: it can't be loaded; says why.
        """
        os.environ.update(arguments.environment(options))
        log.info(f"loading vLLM and {folder.path.name}")
        start = time.monotonic()
        try:
            made = cls._load(options, folder, note, go_on)
        except BackendError:
            raise
        except Exception as error:
            # Whatever a model's own code, torch or vLLM raises: the operator has to see it.
            raise BackendError(f"vLLM can't load {folder.path}: {error}") from error
        log.info("vLLM loaded", seconds=round(time.monotonic() - start, 1))
        return made

    @classmethod
    def _load(
        cls,
        options: VllmOptions,
        folder: ModelFolder,
        note: Callable[[Books], None],
        go_on: Callable[[], bool],
    ) -> VllmLink:
        from vllm.v1.engine.async_llm import AsyncLLM

        config = engine_config(options, folder)
        if not go_on():
            raise BackendError("stopped while loading")
        llm = AsyncLLM.from_vllm_config(config, disable_log_stats=False, stat_loggers=[_books_logger(note)])
        try:
            return cls(llm, model_info(options, folder, config))
        except BackendError:
            llm.shutdown()
            raise

    @property
    def dead(self) -> bool:
        """The process is gone, though nobody closed the link."""
        return self._llm is not None and bool(self._llm.errored)

    async def look(self) -> None:
        """Notes in `info` which attention runs: where ours can't do the model, vLLM's own does.

        Only the worker on a CPU can be asked; on GPUs `info` names the one that was asked for.

        Raises:
            BackendDeadError: the process is gone.
        """
        if self._llm.vllm_config.device_config.device_type == "cpu":
            self.info = replace(self.info, attention=await self.call("parrot_attention"))

    async def outputs(
        self, prompt: Sequence[int], params: Any, priority: int = 0
    ) -> AsyncGenerator[Any, None]:
        """A request's `RequestOutput`s. Closing it takes the request out.

        Raises:
            BackendDeadError: the process is gone.
            BackendError: vLLM refuses the request.
        """
        from vllm.inputs import tokens_input

        await self._in_order()
        request_id = f"parrot-{next(self._request_ids)}"
        finished = False
        try:
            with _translated():
                outputs = self._llm.generate(
                    tokens_input(list(prompt)), params, request_id, priority=priority
                )
                async with aclosing(outputs):
                    async for output in outputs:
                        finished = output.finished
                        yield output
        finally:
            if not finished:
                await self._abort(request_id)

    async def call(self, name: str, *args: Any) -> Any:
        """Calls a method of the scheduler's process between two steps; returns what it returns.

        Raises:
            BackendDeadError: the process is gone.
        """
        await self._in_order()
        return await self._call(name, args)

    def send(self, name: str, *args: Any, then: Callable[[Any], None] | None = None) -> None:
        """Calls without waiting; what was sent is waited for in `close`."""
        task = asyncio.create_task(self._send(name, args, then), name=name)
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def settle(self) -> None:
        """Waits until all that was sent has been answered."""
        if self._calls:
            await asyncio.wait(self._calls)

    async def close(self) -> None:
        """Ends the process."""
        for task in self._calls:
            task.cancel()
        await asyncio.gather(*self._calls, return_exceptions=True)
        llm, self._llm = self._llm, None
        if llm.output_handler is not None:
            # It would take the process's end for a failure.
            llm.output_handler.cancel()
            await asyncio.gather(llm.output_handler, return_exceptions=True)
        await asyncio.to_thread(llm.shutdown)
        # vLLM does it again when the object goes: at the interpreter's end, with its modules gone.
        llm.shutdown = _nothing

    async def _in_order(self) -> None:
        """Lets what was sent before go out first: its task may not have begun."""
        if self._calls:
            await asyncio.sleep(0)

    async def _call(self, name: str, args: Sequence[Any]) -> Any:
        with _translated():
            return await self._llm.engine_core.call_utility_async(name, *args)

    async def _send(self, name: str, args: Sequence[Any], then: Callable[[Any], None] | None) -> None:
        try:
            answer = await self._call(name, args)
        except BackendDeadError:
            # Whoever waits for outputs is told; there is no KV left to speak of.
            return
        except Exception:
            # Whatever the call raised over there comes as a bare Exception. Nobody waits for it here, and
            # all that is lost is memory until what is held expires.
            log.exception("a call to vLLM's engine process failed", call=name)
            return
        if then is not None:
            then(answer)

    async def _abort(self, request_id: str) -> None:
        """Takes a request out even if it was cancelled on its way in, which vLLM itself forgets."""
        from vllm.v1.engine.exceptions import EngineDeadError

        with suppress(EngineDeadError):
            await self._llm.abort(request_id)


def engine_config(options: VllmOptions, folder: ModelFolder) -> Any:
    """vLLM's configuration, with the scheduler that holds contexts.

    Raises:
        BackendError: the platform can't do what the options ask for.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    capability = current_platform.get_device_capability() if current_platform.is_cuda() else None
    arguments.check_invariance(options, tuple(capability) if capability else None)
    if current_platform.is_cpu():
        arguments.check_libraries()
    if arguments.attention(options) == arguments.OWN_ATTENTION:
        # As a plugin too, but vLLM may have been told to load none.
        vllm_backend.offer()
    given = arguments.engine_arguments(options, folder.path, folder.name, on_cpu=current_platform.is_cpu())
    config = AsyncEngineArgs(**given).create_engine_config()
    # Only now does vLLM know whether it schedules ahead; with a scheduler given it would not.
    config.scheduler_config.scheduler_cls = arguments.scheduler(config.scheduler_config.async_scheduling)
    return config


def model_info(options: VllmOptions, folder: ModelFolder, config: Any) -> ModelInfo:
    """What is served, of a configuration whose engine has been started.

    Raises:
        BackendError: the KV memory is too small for one window.
    """
    import vllm

    cache, window = config.cache_config, config.model_config.max_model_len
    # One block is vLLM's own.
    kv_tokens = ((cache.num_gpu_blocks or 1) - 1) * cache.block_size
    if kv_tokens < window:
        raise BackendError(
            f"the memory for KV takes {kv_tokens} tokens and a window is {window}: "
            "give more kv_cache_bytes or a smaller context_window_tokens"
        )
    backend = config.attention_config.backend
    return ModelInfo(
        model=options.model_name or folder.name,
        context_window_tokens=window,
        backend="vllm",
        version=vllm.__version__,
        dtype=str(config.model_config.dtype).removeprefix("torch."),
        kv_tokens=kv_tokens,
        block_tokens=cache.block_size,
        capacity=options.capacity,
        tensor_parallel=config.parallel_config.tensor_parallel_size,
        attention=getattr(backend, "name", ""),
        batch_invariant=options.batch_invariant,
    )


def _nothing() -> None:
    pass


@contextmanager
def _translated() -> Iterator[None]:
    from vllm.exceptions import VLLMError
    from vllm.v1.engine.exceptions import EngineDeadError

    try:
        yield
    except EngineDeadError as error:
        raise BackendDeadError("vLLM's engine process is gone") from error
    except (VLLMError, ValueError) as error:
        raise BackendError(f"vLLM refuses: {error.__cause__ or error}") from error


def _books_logger(note: Callable[[Books], None]) -> type:
    """A logger of vLLM's statistics that only reads the books.

    It stands in the place of vLLM's logger for Prometheus, which nothing here reads.
    """
    from vllm.v1.metrics.loggers import PrometheusStatLogger

    class BooksLogger(PrometheusStatLogger):  # type: ignore[misc]
        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            books = Books.of(scheduler_stats and scheduler_stats.kv_connector_stats)
            if books is not None:
                note(books)

        def log_engine_initialized(self) -> None:
            pass

        def record_sleep_state(self, *_: Any, **__: Any) -> None:
            pass

        def record_admission_rejection(self, reason: str) -> None:
            pass

    return BooksLogger
