"""The prototype's virtual machine: a session that the calls of a whole process join."""

from __future__ import annotations

import atexit
import importlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, Literal

from parrot.compat import environment, programs
from parrot.compat.body import Parameter
from parrot.compat.functions import BasicFunction, SemanticFunction
from parrot.compat.programs import RuntimeInfo
from parrot.criteria import THROUGHPUT
from parrot.errors import ParrotError, SessionError
from parrot.function import Function
from parrot.sampling import SamplingConfig
from parrot.session import Session

Mode = Literal["release", "debug"]

SESSION_S: Final = 12 * 3600
"""How long a program may run, as the prototype's documentation says."""

_log = logging.getLogger("parrot")


class VirtualMachine:
    """Runs programs, each in a session of its own, which every call in the process joins meanwhile.

    As in the prototype's last version, named by `core_http_addr`, calls run when somebody reads what
    they lead to, with throughput as the default. As in the one before, named by `os_http_addr`, they
    run as soon as they are made. The API key is PARROT_API_KEY.

    Attributes:
        core_http_addr: the server's URL; os_http_addr is the same.
        stat_run_time: how long the last program ran, in seconds.

    Args:
        mode: "release" keeps the SDK's own log to warnings.

    Raises:
        TypeError: the server is named twice, or not at all.
        ValueError: its URL is none, or the mode.
    """

    def __init__(
        self, core_http_addr: str | None = None, mode: Mode = "release", *, os_http_addr: str | None = None
    ) -> None:
        if (core_http_addr is None) == (os_http_addr is None):
            raise TypeError("a VirtualMachine has a core_http_addr, the server's URL (or an os_http_addr)")
        if mode not in {"release", "debug"}:
            raise ValueError(f"mode is {mode!r}; it is 'release' or 'debug'")
        self.core_http_addr = self.os_http_addr = core_http_addr or os_http_addr or ""
        self.stat_run_time = 0.0
        self._eager = os_http_addr is not None
        self._batching = False
        self._anonymous = 0
        self._depth = 0
        self._session: Session | None = None
        self._outer: environment.Machine | None = None
        self._make_session()  # To refuse a URL that is none.
        if mode == "release":
            _log.setLevel(logging.WARNING)

    def __repr__(self) -> str:
        return f"<VirtualMachine at {self.core_http_addr}, session {self.session_id or 'none'}>"

    @property
    def session(self) -> Session | None:
        """The session of the program that runs; None: none does."""
        return self._session

    @property
    def session_id(self) -> str | None:
        """Its id on the server."""
        return self._session.id if self._session is not None else None

    @property
    def pid(self) -> str | None:
        """As `session_id`."""
        return self.session_id

    @property
    def session_registered(self) -> bool:
        """Whether there is a session."""
        return self._session is not None

    @property
    def sends_at_once(self) -> bool:
        """Whether calls are sent as they are made."""
        return self._eager and not self._batching

    @property
    def runtime_info(self) -> RuntimeInfo:
        """What the session uses, asked of the server.

        Raises:
            SessionError: no program runs.
        """
        calls = self._running().info().calls
        return RuntimeInfo(
            num_total_tokens=sum(call.prompt_tokens + call.output_tokens for call in calls),
            num_threads=sum(call.ended_unix_ms is None for call in calls),
        )

    def register_session(self) -> None:
        """Opens a session.

        Raises:
            SessionError: there is one.
            ServerUnavailable: the server can't be reached.
        """
        if self._session is not None:
            raise SessionError(f"{self!r} has a session already")
        self._session = self._make_session().open()
        atexit.register(self._at_exit)

    def unregister_session(self) -> None:
        """Ends the session; what is unfinished is cancelled. Does nothing without one."""
        session, self._session = self._session, None
        self._batching = False
        atexit.unregister(self._at_exit)
        if session is not None:
            session.close()

    def set_global_env(self) -> None:
        """Opens a session which every call in the process joins, in all threads; once, if it is nested.

        Raises:
            As `register_session`.
        """
        if self._depth == 0:
            self.register_session()
            self._running().use()
            self._outer = environment.enter(self)
        self._depth += 1

    def unset_global_env(self) -> None:
        """Ends that session, at the outermost; calls join again what they joined before."""
        self._depth = max(0, self._depth - 1)
        if self._depth:
            return
        if environment.machine() is self:
            environment.enter(self._outer)
        self._outer = None
        if self._session is not None:
            self._session.unuse()
        self.unregister_session()

    @contextmanager
    def running_scope(self, timeit: bool = False) -> Iterator[None]:
        """A session for the length of the block. An error in the block is raised.

        Args:
            timeit: logs how long it took.
        """
        began = time.perf_counter()
        self.set_global_env()
        try:
            yield
        except BaseException:
            self._leave_failed()
            raise
        self.unset_global_env()
        self.stat_run_time = time.perf_counter() - began
        if timeit:
            _log.info("the program ran for %.3f s", self.stat_run_time)

    def run(self, program: Callable[..., Any], timeit: bool = False, args: Sequence[Any] = ()) -> float:
        """Runs a program, a function or a coroutine function, in a session of its own.

        Args:
            timeit: logs how long it took.
            args: what the program is called with.

        Returns:
            How long it took, in seconds.

        Raises:
            What the program raises.
        """
        with self.running_scope(timeit):
            programs.run(program, args)
        return self.stat_run_time

    def profile(
        self, program: Callable[..., Any], warmups: int = 3, trials: int = 20, args: Sequence[Any] = ()
    ) -> float:
        """The mean time of `trials` runs, in seconds, after `warmups` that don't count.

        Raises:
            ValueError: there are no trials.
        """
        if trials < 1:
            raise ValueError(f"trials is {trials}; it is at least 1")
        for _ in range(warmups):
            self.run(program, args=args)
        return sum(self.run(program, args=args) for _ in range(trials)) / trials

    def define_function(
        self,
        func_name: str | None,
        func_body: str,
        params: Sequence[Parameter],
        try_register: bool = True,
        **semantic_func_metadata: Any,
    ) -> SemanticFunction:
        """A function of a template, which is taken as it is.

        Args:
            func_name: None: it is given one.
            try_register: accepted; a function needs no registration.
            **semantic_func_metadata: see `SemanticFuncMetadata`.

        Raises:
            PlaceholderError: template and parameters don't agree.
        """
        if func_name is None:
            func_name = f"anonymous_{self._anonymous}"
            self._anonymous += 1
        given = [
            replace(param, sampling_config=param.sampling_config or SamplingConfig())
            if param.is_output
            else param
            for param in params
        ]
        made = SemanticFunction(
            func_name, given, func_body_str=func_body, try_register=try_register, **semantic_func_metadata
        )
        made.check()
        return made

    def import_function(self, function_name: str, module_path: str) -> BasicFunction | Function:
        """A function of a module, such as "qa" of "codelib.app.common".

        Raises:
            ImportError: there is no such module, or it can't be imported, or has no such name.
            ValueError: what it has is no semantic or native function.
        """
        try:
            found = getattr(importlib.import_module(module_path), function_name)
        except (ImportError, AttributeError) as error:
            raise ImportError(
                f"Cannot import function {function_name} from module: {module_path}. ({error})"
            ) from error
        if not isinstance(found, (BasicFunction, Function)):
            raise ValueError(f"Function {function_name} is not a semantic function or a native function.")
        return found

    def set_batch(self, latency: float = 0.001) -> None:
        """Keeps the calls made from now on, until `submit_batch` sends them in one request, in order.

        Args:
            latency: accepted; calls of one request need no pause between them.

        Raises:
            SessionError: a batch has begun already.
        """
        if self._batching:
            raise SessionError("Batching is already set.")
        self._batching = True

    async def submit_batch(self) -> None:
        """Sends the batch.

        Raises:
            SessionError: none has begun, or no program runs.
            RequestRefused: the server refused it; nothing of it was accepted.
        """
        if not self._batching:
            raise SessionError("Batching is not set.")
        self._batching = False
        await self._running().aflush()

    def _make_session(self) -> Session:
        if self._eager:
            return Session(self.core_http_addr, timeout=SESSION_S)
        return Session(self.core_http_addr, timeout=SESSION_S, criteria=THROUGHPUT, lazy=True)

    def _running(self) -> Session:
        if self._session is None:
            raise SessionError("no program runs in this VirtualMachine; use run() or running_scope()")
        return self._session

    def _leave_failed(self) -> None:
        """Leaves behind an error, or with the process; what goes wrong here must not hide why."""
        try:
            self.unset_global_env()
        except ParrotError as error:
            _log.warning("the session was not closed: %s", error)

    def _at_exit(self) -> None:
        self._depth = 1
        self._leave_failed()
