"""What `parrot up` says: a line for people, or a JSON object a line for programs."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time


class Report:
    """Prints events. The line that shows progress is overwritten on a terminal."""

    def __init__(self, *, as_json: bool) -> None:
        self._json = as_json
        self._live = not as_json and sys.stdout.isatty()
        self._pending = False
        self._told_at = time.monotonic()

    def event(self, kind: str, text: str, *, is_error: bool = False, **fields: object) -> None:
        """Something happened: `kind` and `fields` for programs, `text` for people (errors on stderr)."""
        if self._json:
            _write(json.dumps({"event": kind, "text": text, **fields}) + "\n")
        else:
            self._clear()
            _write(text + "\n", is_error=is_error)
        self._told_at = time.monotonic()

    def progress(self, text: str, every_s: float = 5.0) -> None:
        """Something goes on. A log of lines for people gets one in `every_s` at most."""
        if self._live:
            self._clear()
            _write(text[: shutil.get_terminal_size().columns - 1])
            self._pending = True
        elif self._json or time.monotonic() - self._told_at >= every_s:
            self.event("progress", text)

    def _clear(self) -> None:
        if self._pending:
            _write("\r\x1b[K")
        self._pending = False


def _write(text: str, *, is_error: bool = False) -> None:
    stream = sys.stderr if is_error else sys.stdout
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        # Nobody reads any more. The stack is stopped by signals, not by the loss of its audience.
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
