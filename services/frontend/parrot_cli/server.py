"""The HTTP API as the commands use it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final, Self
from urllib.parse import quote, urlsplit

import httpx
import typer

from parrot_cli.failing import PROBLEM, REFUSED, UNREACHABLE, CommandError, wrong_use

DEFAULT_URL: Final = "http://127.0.0.1:8080"
CONNECT_S: Final = 5.0
ANSWER_S: Final = 60.0
NEWEST: Final = "last"

Url = Annotated[str, typer.Option("--url", envvar="PARROT_URL", metavar="URL", help="The server.")]
ApiKey = Annotated[
    str, typer.Option("--api-key", envvar="PARROT_API_KEY", metavar="KEY", help="The tenant's key, if any.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
SessionId = Annotated[
    str, typer.Argument(metavar="SESSION", help=f"A session's id; '{NEWEST}' is the newest one's.")
]


class Server:
    """One server, asked as one tenant. Every method raises `CommandError`."""

    def __init__(self, url: str, api_key: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            wrong_use(f"--url is {url!r}; it looks like {DEFAULT_URL}")
        if not api_key.isascii() or not api_key.isprintable():
            wrong_use("--api-key holds characters that no key has")
        self.url = url.rstrip("/")
        self.api_key = api_key
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(ANSWER_S, connect=CONNECT_S),
            # A proxy of the environment can't reach this machine's own loopback.
            trust_env=parts.hostname not in {"127.0.0.1", "localhost", "::1"},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: str | float) -> Any:
        """What is at a path."""
        return self._ask("GET", path, query=query)

    def post(self, path: str, body: object = None, **query: str | float) -> Any:
        """The answer to what is sent."""
        return self._ask("POST", path, body, query)

    def delete(self, path: str) -> Any:
        """The answer to a DELETE."""
        return self._ask("DELETE", path)

    @contextmanager
    def stream(self, path: str, last_event_id: str, silence_s: float) -> Iterator[Iterator[bytes]]:
        """The bytes of an event stream; none for `silence_s` is a failure."""
        headers = {"Accept": "text/event-stream"}
        if last_event_id:
            headers["Last-Event-ID"] = last_event_id
        timeout = httpx.Timeout(silence_s, connect=CONNECT_S)
        with self._reaching(), self._http.stream("GET", path, headers=headers, timeout=timeout) as response:
            if response.is_error:
                response.read()
                raise _refusal(response)
            yield response.iter_bytes()

    def session(self, name: str) -> str:
        """The id of a session that a person named."""
        if name != NEWEST:
            return quote(name, safe="")
        found = self.get("/v1/sessions", limit=1)["sessions"]
        if not found:
            raise CommandError("there is no session yet", REFUSED)
        return str(found[0]["id"])

    def _ask(self, method: str, path: str, body: object = None, query: dict[str, Any] | None = None) -> Any:
        with self._reaching():
            # Escaped throughout: what is no text is the server's to refuse, with its place.
            content = None if body is None else json.dumps(body).encode()
            headers = {} if body is None else {"Content-Type": "application/json"}
            response = self._http.request(method, path, content=content, headers=headers, params=query)
        if response.is_error:
            raise _refusal(response)
        try:
            return response.json()
        except ValueError:
            raise CommandError(f"what answers at {self.url} is no Parrot server", UNREACHABLE) from None

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except httpx.HTTPError as error:
            reason = str(error) or type(error).__name__
            raise CommandError(
                f"no Parrot server can be reached at {self.url} ({reason}); start one with 'parrot up', "
                "or name another with --url or PARROT_URL",
                UNREACHABLE,
            ) from None


def problem_line(problem: dict[str, Any]) -> str:
    """A problem document in one line."""
    kind = str(problem.get("type", "unknown")).removeprefix(PROBLEM)
    return f"{kind}: {problem.get('detail') or problem.get('title') or 'no reason was given'}"


def _refusal(response: httpx.Response) -> CommandError:
    # Of a proxy too, whose server is away.
    code = UNREACHABLE if response.status_code in {502, 503, 504} else REFUSED
    try:
        problem = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError):
        problem = None
    if not isinstance(problem, dict) or "type" not in problem:
        where = response.request.url.host
        return CommandError(f"HTTP {response.status_code} from {where}, which gave no reason", code)
    hint = "; here: --api-key or PARROT_API_KEY" if response.status_code == 401 else ""
    return CommandError(problem_line(problem) + hint, code, problem)
