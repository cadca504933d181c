"""Pieces of real text have exactly the tokens that were asked for."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

import pytest

from parrot_bench.documents import ByteTokenizer, DocumentError, Documents, read_documents

TEXTS = [
    "The harbour opens at six. " * 40,
    "Ein Märchen aus Königsberg: süß, größer. " * 40,
    "雨 が 降 る 。 " * 60,
]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("tokens", [1, 7, 64, 129])
def test_every_piece_has_exactly_its_tokens(seed: int, tokens: int) -> None:
    documents = Documents(TEXTS, ByteTokenizer(), seed)
    for _ in range(5):
        assert len(documents.take(tokens).encode()) == tokens


def test_pieces_do_not_overlap() -> None:
    text = "".join(f"{number:05d} " for number in range(500))
    documents = Documents([text], ByteTokenizer(), 3)
    taken = [documents.take(60) for _ in range(50)]
    assert all(piece in text + text for piece in taken)
    assert len({piece[:30] for piece in taken}) == 50


def test_a_seed_repeats_its_text_and_another_has_other_text() -> None:
    first, again, other = (Documents(TEXTS, ByteTokenizer(), seed).take(200) for seed in (1, 1, 2))
    assert first == again != other


def test_a_seed_orders_the_documents_anew() -> None:
    """Cut at another place alone, two seeds would now and then cut the same pieces."""
    texts = [f"document {number}: " + "word " * 30 for number in range(12)]

    def order(seed: int) -> list[str]:
        text = Documents(texts, ByteTokenizer(), seed).take(sum(map(len, texts)) // 2)
        return re.findall(r"document (\d+):", text)

    steps = [(int(b) - int(a)) % 12 for a, b in pairwise(order(1))]
    assert set(steps) != {1}


def test_what_is_used_up_is_said() -> None:
    documents = Documents(["short text"], ByteTokenizer(), 0)
    documents.take(6)
    with pytest.raises(DocumentError, match="--data"):
        documents.take(6)
    with pytest.raises(DocumentError, match="have 0 tokens"):
        Documents([], ByteTokenizer(), 0).take(1)


def test_text_that_has_no_such_piece_is_said_to_have_none() -> None:
    # Four bytes a character: no piece of whole characters has five.
    with pytest.raises(DocumentError, match="exactly 5 tokens"):
        Documents(["\U0001f99c" * 500], ByteTokenizer(), 0).take(5)


def test_a_folder_is_read_with_its_folders(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "b.md").write_text("second")
    (tmp_path / "deep" / "a.txt").write_text("third")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert read_documents(tmp_path) == {"b.md": "second", "deep/a.txt": "third"}


@pytest.mark.parametrize("content", [None, b"  \n", b"\xff\xfe"])
def test_a_folder_without_text_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(DocumentError, match=str(tmp_path)):
        read_documents(tmp_path)


def test_python_carries_enough_text_for_every_workload() -> None:
    assert sum(map(len, read_documents(None).values())) > 300_000
