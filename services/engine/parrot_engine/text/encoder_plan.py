"""Reads from a tokenizer.json how a growing text can be encoded."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from parrot_engine.text import normalizers
from parrot_engine.text.cuts import Before, CutRules, Splitter, Stage
from parrot_engine.text.incremental import CuttingEncoder, IncrementalEncoder, WaitingEncoder
from parrot_engine.text.merges import Merges, spell_bytes
from parrot_engine.text.normalizers import UnsupportedNormalizerError, pattern_of
from parrot_engine.text.patterns import BOUNDARY, CROSSED, INSIDE, Pattern, UnsupportedPatternError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""What the library's ByteLevel splits at (`use_regex`)."""
PUNCTUATION: Final = r"[\p{P}$+<=>^`|~]"

Spec = Mapping[str, Any]
Build = Callable[[dict[str, Any]], "Tokenizer"]
EncodeWith = Callable[["Tokenizer", str], list[int]]


class UnsupportedTokenizerError(Exception):
    """Its words may depend on what comes much later, or nobody knows; says why."""


class EncoderPlan:
    """How to encode growing texts with one tokenizer; made once, used by any number of texts.

    Attributes:
        waits_for_end: why tokens come at the end only; empty: they come as they become sure.
    """

    def __init__(self, spec: dict[str, Any], whole: Tokenizer, build: Build, encode: EncodeWith) -> None:
        """Reads a tokenizer.json without added tokens.

        Args:
            whole: the tokenizer that it describes.
            build: makes a tokenizer of a tokenizer.json's contents.
            encode: encodes a text that is whole.
        """
        self._encode = encode
        self._whole = whole
        self.waits_for_end = ""
        try:
            self._steps = normalizers.understand(spec.get("normalizer"))
            reading = _read_splitting(spec.get("pre_tokenizer"))
            self._rules = _rules(spec, reading, build)
        except (UnsupportedPatternError, UnsupportedNormalizerError, UnsupportedTokenizerError) as error:
            self.waits_for_end = str(error)
            return
        self._first = build({**spec, "normalizer": None}) if self._steps else whole
        self._later = self._first
        if reading.begins_otherwise:
            self._later = build({**spec, "normalizer": None, "pre_tokenizer": reading.later()})

    def start(self) -> IncrementalEncoder:
        """An encoder for one text."""
        if self.waits_for_end:
            return WaitingEncoder(lambda text: self._encode(self._whole, text), self.waits_for_end)
        return CuttingEncoder(
            [make() for make in self._steps],
            self._rules,
            lambda text: self._encode(self._first, text),
            lambda text: self._encode(self._later, text),
        )


@dataclass(slots=True)
class _Splitting:
    """What a tokenizer.json's pre-tokenizer does.

    Attributes:
        specs: its parts, as they are to be for what follows a cut.
        begins_otherwise: what a text begins with is split in another way.
        deciding: how many of the stages split for good, the first ones; None: all.
        spell: what the model is given in the place of a character.
    """

    specs: list[dict[str, Any]] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    deciding: int | None = None
    spell: Callable[[str], str] = str
    begins_otherwise: bool = False

    def later(self) -> dict[str, Any] | None:
        """The pre-tokenizer for what follows a cut."""
        return {"type": "Sequence", "pretokenizers": self.specs} if self.specs else None


def _rules(spec: Spec, splitting: _Splitting, build: Build) -> CutRules:
    merges = _merges(spec, splitting, build)
    deciding = len(splitting.stages) if splitting.deciding is None else splitting.deciding
    if merges is None and not any(stage.splits for stage in splitting.stages[:deciding]):
        raise UnsupportedTokenizerError("nothing splits the text into words")
    return CutRules(splitting.stages, deciding, merges, led=splitting.begins_otherwise)


def _merges(spec: Spec, splitting: _Splitting, build: Build) -> Merges | None:
    """The model's merges, where words may be cut at all."""
    model = spec["model"]
    if model.get("dropout"):
        raise UnsupportedTokenizerError("the tokenizer leaves merges out by chance")
    if model["type"] != "BPE" or splitting.deciding is not None or not Merges.understands(model):
        return None
    merges = Merges(model, splitting.spell)
    if model.get("ignore_merges") and not _merges_reach_all(spec, merges, build):
        return None
    return merges


def _merges_reach_all(spec: Spec, merges: Merges, build: Build) -> bool:
    """Whether a word that is in the vocabulary is one token by its merges too.

    A model that looks whole words up first can be cut within words only then.
    """
    model = {**spec["model"], "ignore_merges": False}
    bare = build({**spec, "normalizer": None, "pre_tokenizer": None, "model": model}).model
    spelt = [piece for piece in model["vocab"] if len(piece) > 1 and not piece.startswith("\uffff")]
    return len(merges.pieces) >= len(spelt) and all(len(bare.tokenize(piece)) == 1 for piece in spelt)


def _read_splitting(spec: dict[str, Any] | None) -> _Splitting:
    made = _Splitting()
    for part in _parts(spec):
        if made.specs and made.specs[-1]["type"] in ("ByteLevel", "Metaspace"):
            raise UnsupportedTokenizerError("its pre-tokenizer splits what it has rewritten")
        _READERS.get(part["type"], _refuse)(made, part)
    return made


def _parts(spec: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The parts of a pre-tokenizer, each with all its settings as the library understands them."""
    from tokenizers import Tokenizer

    if spec is None:
        return []
    model = {"type": "BPE", "vocab": {}, "merges": []}
    made = Tokenizer.from_str(
        json.dumps({"version": "1.0", "pre_tokenizer": spec, "model": model, "added_tokens": []})
    )
    return _flat(json.loads(made.to_str())["pre_tokenizer"])


def _flat(spec: dict[str, Any]) -> list[dict[str, Any]]:
    if spec["type"] != "Sequence":
        return [spec]
    return [part for inner in spec["pretokenizers"] for part in _flat(inner)]


def _refuse(made: _Splitting, part: dict[str, Any]) -> None:
    raise UnsupportedTokenizerError(f"pre-tokenizer {part['type']}")


def _read_split(made: _Splitting, part: dict[str, Any]) -> None:
    alone = part["behavior"] in ("Isolated", "Removed")
    made.stages.append(Splitter(pattern_of(part["pattern"]), splits_everywhere=alone))
    made.specs.append(part)


def _read_digits(made: _Splitting, part: dict[str, Any]) -> None:
    pattern = r"\p{N}" if part["individual_digits"] else r"\p{N}+"
    made.stages.append(Splitter(Pattern(pattern), splits_everywhere=True))
    made.specs.append(part)


def _read_punctuation(made: _Splitting, part: dict[str, Any]) -> None:
    # What counts as punctuation differs between versions: one never cuts because of it alone.
    made.stages.append(Splitter(Pattern(PUNCTUATION), splits_everywhere=False))
    made.specs.append(part)


def _read_whitespace(made: _Splitting, part: dict[str, Any]) -> None:
    made.stages.append(Splitter(Pattern(r"\s"), splits_everywhere=True))
    made.specs.append(part)


def _read_delimiter(made: _Splitting, part: dict[str, Any]) -> None:
    made.stages.append(Splitter(pattern_of({"String": part["delimiter"]}), splits_everywhere=True))
    made.specs.append(part)


def _read_byte_level(made: _Splitting, part: dict[str, Any]) -> None:
    made.spell = spell_bytes
    if part["add_prefix_space"] and made.stages:
        # Every piece so far gets a space in front: only one that has it stays as it is.
        made.stages.append(Before(" ", there=INSIDE, elsewhere=CROSSED))
        made.specs.append(part)
    else:
        made.begins_otherwise |= part["add_prefix_space"]
        made.specs.append({**part, "add_prefix_space": False})
    if part["use_regex"]:
        made.stages.append(Splitter(Pattern(GPT2), splits_everywhere=True))


def _read_metaspace(made: _Splitting, part: dict[str, Any]) -> None:
    scheme, replacement = part["prepend_scheme"], part["replacement"]
    if made.stages and scheme == "first":
        raise UnsupportedTokenizerError("its pre-tokenizer marks the first piece after splitting")
    if made.stages and scheme == "always":
        made.deciding = len(made.stages)
        made.specs.append(part)
    else:
        made.begins_otherwise |= scheme != "never"
        made.specs.append({**part, "prepend_scheme": "never"})
    there = BOUNDARY if part["split"] else INSIDE
    made.spell = lambda char: replacement if char == " " else char
    made.stages.append(Before(" " + replacement, there=there, elsewhere=INSIDE))


_READERS: Final[Mapping[str, Callable[[_Splitting, dict[str, Any]], None]]] = {
    "Split": _read_split,
    "Digits": _read_digits,
    "Punctuation": _read_punctuation,
    "WhitespaceSplit": _read_whitespace,
    "CharDelimiterSplit": _read_delimiter,
    "ByteLevel": _read_byte_level,
    "Metaspace": _read_metaspace,
}
