"""Every link in the documents, the README's too, leads to a file and to a heading of it that are there."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent.parent
FOLDERS: Final = (
    "benchmarks",
    "deploy",
    "docker",
    "docs",
    "examples",
    "k8s",
    "proto",
    "services",
    "tests",
    "tools",
)
DOCUMENTS: Final = sorted(
    [*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))]
)
BLOCK: Final = re.compile(r"^ *(```|~~~).*?^ *\1 *$", re.MULTILINE | re.DOTALL)
INLINE_CODE: Final = re.compile(r"`[^`\n]+`")
LINK: Final = re.compile(r"\]\(<?([^)>\s]+)>?(?: +\"[^\"]*\")?\)")
HEADING: Final = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_to_what_is_there(document: Path) -> None:
    assert [link for link in links(document.read_text()) if not is_there(document, link)] == []


@pytest.mark.parametrize(
    ("link", "there"),
    [
        ("docs/operate.md", True),
        ("docs/operate.md#sizing", True),
        ("docs", True),
        ("https://example.org/anything", True),
        ("#two-commands", True),
        ("docs/operated.md", False),
        ("docs/operate.md#size", False),
        ("/etc/passwd", False),
        ("../outside", False),
    ],
)
def test_a_link_that_leads_nowhere_is_told_from_others(link: str, there: bool) -> None:
    assert is_there(ROOT / "README.md", link) is there


def test_links_are_found_in_text_and_not_in_code() -> None:
    text = (
        '[a](b.md) and [`c`](<d.md>), `[no](e.md)`\n```\n[no](f.md)\n```\n| [g](h.md#i "j") | ![k](l.png)\n'
    )
    assert links(text) == ["b.md", "d.md", "h.md#i", "l.png"]


def test_headings_are_named_as_they_are_on_the_web() -> None:
    text = "# `parrot up`, and [more](x.md)!\n## It's A_b\n```\n# none\n```\n## It's A_b\n"
    assert headings(text) == {"parrot-up-and-more", "its-a_b", "its-a_b-1"}


def links(text: str) -> list[str]:
    """Where a document's links lead, in order."""
    return LINK.findall(INLINE_CODE.sub("``", BLOCK.sub("", text)))


def is_there(document: Path, link: str) -> bool:
    """Whether a link leads somewhere in this repository, or out of it to the web."""
    if re.match(r"[a-z]+:", link):
        return True
    name, _, heading = link.partition("#")
    target = (document.parent / name).resolve() if name else document
    if not target.is_relative_to(ROOT) or not target.exists():
        return False
    return not heading or (target.suffix == ".md" and heading in headings(target.read_text()))


@cache
def headings(text: str) -> frozenset[str]:
    """What the headings of a document are called in links to them."""
    found: dict[str, int] = {}
    names = set()
    for title in HEADING.findall(BLOCK.sub("", text)):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        name = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        names.add(f"{name}-{found[name]}" if name in found else name)
        found[name] = found.get(name, 0) + 1
    return frozenset(names)
