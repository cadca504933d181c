"""Real text in pieces of an exact number of tokens."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from parrot_bench.systems.base import Unavailable

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HfTokenizer

SUFFIXES: Final = (".txt", ".md", ".rst")
TRIES: Final = 256
"""Places tried for a piece that keeps its number of tokens when it stands alone."""


class DocumentError(Exception):
    """There is no text to work with; says why and what to do."""


class Tokenizer(Protocol):
    """Text to tokens and back."""

    def encode(self, text: str) -> list[int]:
        """The tokens of a text, and nothing added to them."""

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""


class ByteTokenizer:
    """A token a byte of UTF-8, as the simulated engine has it."""

    def encode(self, text: str) -> list[int]:
        """The bytes."""
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """The text of bytes; half characters are left out."""
        return bytes(tokens).decode(errors="ignore")


class ModelTokenizer:
    """The tokenizer of a Hugging Face model's folder."""

    def __init__(self, folder: Path) -> None:
        """Loads it.

        Raises:
            Unavailable: the package `tokenizers` is missing.
        """
        try:
            from tokenizers import Tokenizer
        except ImportError:
            raise Unavailable(
                "counting tokens needs the package tokenizers: pip install 'parrot-serve[bench]'"
            ) from None
        self._tokenizer: HfTokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode(self, text: str) -> list[int]:
        """Its tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, tokens: Sequence[int]) -> str:
        """Their text."""
        return str(self._tokenizer.decode(list(tokens), skip_special_tokens=False))


def model_folder(model: str) -> Path:
    """The folder of a model; the packaged one is made first if it has to be.

    The engine's own program is asked, so that all systems run the same files.

    Raises:
        Unavailable: there is no such model.
    """
    command = [sys.executable, "-m", "parrot_engine.models", model]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise Unavailable(f"the model {model} can't be used: {(done.stderr.strip() or '?').splitlines()[-1]}")
    return Path(done.stdout.strip())


def read_documents(folder: Path | None) -> dict[str, str]:
    """The documents of a folder, by their names; without one, the language reference that Python carries.

    Raises:
        DocumentError: the folder has no text, or it can't be read.
    """
    if folder is None:
        from pydoc_data.topics import topics

        return {name: str(text) for name, text in sorted(topics.items())}
    try:
        paths = sorted(path for path in folder.rglob("*") if path.suffix in SUFFIXES and path.is_file())
        found = {str(path.relative_to(folder)): path.read_text("utf-8") for path in paths}
    except (OSError, UnicodeDecodeError) as error:
        raise DocumentError(f"--data {folder} can't be read: {error}") from None
    if not any(text.strip() for text in found.values()):
        raise DocumentError(f"--data {folder} has no text; it takes {', '.join(SUFFIXES)} files in UTF-8")
    return found


class Documents:
    """A supply of text that is used up: no two pieces overlap.

    Args:
        seed: another order of the documents, and other places where they are cut.
    """

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer, seed: int) -> None:
        dice = random.Random(seed)  # noqa: S311 - it is to be repeated, not to be secret
        order = list(texts)
        # In an order of its own, so that no shift makes the pieces of two seeds the same.
        dice.shuffle(order)
        self.tokenizer = tokenizer
        self._tokens = tokenizer.encode("\n\n".join(order))
        # A cut of its own, so that pieces of another seed don't begin where these do.
        shift = dice.randrange(len(self._tokens)) if self._tokens else 0
        self._tokens = self._tokens[shift:] + self._tokens[:shift]
        self._place = 0

    def take(self, tokens: int) -> str:
        """The next text of exactly so many tokens, when it is encoded by itself.

        Raises:
            DocumentError: there is not so much left.
        """
        for start in range(self._place, self._place + TRIES):
            piece = self._tokens[start : start + tokens]
            if len(piece) < tokens:
                raise DocumentError(
                    f"the documents have {len(self._tokens):,} tokens, {self._place:,} of them are used, and "
                    f"{tokens:,} more are needed; give more text with --data, or ask for less"
                )
            text = self.tokenizer.decode(piece)
            # A cut within a word, or a character, may make other tokens of its halves.
            if len(self.tokenizer.encode(text)) == tokens:
                self._place = start + tokens
                return text
        raise DocumentError(
            f"no part of the documents from token {self._place:,} on has exactly {tokens:,} tokens when it "
            "stands alone; give other text with --data, or ask for another number"
        )
