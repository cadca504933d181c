"""What parts of a graph are called in the manager's contract, and on the HTTP API."""

from __future__ import annotations

import re
from typing import Final

_WORDS: Final = (
    (re.compile(r"(?<=\.)(list|item|index|initial|next)_variable_id\b"), r"\1"),
    (re.compile(r"(carried\[\d+\])\.body_variable_id\b"), r"\1.body"),
    (re.compile(r"(?<=\.)body_variable_id\b"), "from"),
    (re.compile(r"(?<=\.)from_variable_ids\b"), "from"),
    (re.compile(r"(?<=\.)variable_id\b"), "semantic_var_id"),
    (re.compile(r"\bvalues(?=\[\d+\]\.)"), "variables"),
)


def reworded(text: str) -> str:
    """A path, or a text with paths in it, in the words of the HTTP API."""
    for manager_word, word in _WORDS:
        text = manager_word.sub(word, text)
    return text
