"""Readers find each page from the text of another one, and the whole programs from the guides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(page for page in DOCS.rglob("*.md") if "generated" not in page.parts)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)  # of code, and of directives such as toctree
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+\.md)(?:#[^)]*)?\)")

# What the site's own navigation leads to, and nothing else has to.
STARTS = {"index.md", "changelog.md", "migration/index.md", "reference/index.md"}
# Guides of parts that no whole program uses alone.
WITHOUT_RECIPE = {"index.md", "inspecting.md", "own-module.md", "slices.md"}


def name(page: Path) -> str:
    return page.relative_to(DOCS).as_posix()


def links(page: Path) -> Iterator[Path]:
    """Yield the pages that one links to, but for those in the table of a folder's index."""
    for line in FENCE.sub("", page.read_text(encoding="utf-8")).splitlines():
        for target in LINK.findall(line):
            found = (page.parent / target).resolve()
            of_index = page.name == "index.md" and line.startswith("|") and found.parent == page.parent
            if found != page and not of_index:
                yield found


def test_each_page_is_linked_from_the_text_of_another_one() -> None:
    assert len(PAGES) > 70
    linked = {target for page in [ROOT / "README.md", *PAGES] for target in links(page)}
    assert not [name(page) for page in PAGES if page not in linked and name(page) not in STARTS]


def test_links_lead_to_pages() -> None:
    assert not [f"{name(page)}: {target}" for page in PAGES for target in links(page) if not target.exists()]


def test_each_guide_leads_to_whole_programs() -> None:
    recipes = DOCS / "recipes"
    guides = {page.name: page for page in (DOCS / "guides").glob("*.md")}
    lonely = {file for file, page in guides.items() if not any(to.parent == recipes for to in links(page))}
    assert lonely == WITHOUT_RECIPE - {"index.md"}
    shown = {target for page in guides.values() for target in links(page) if page.name != "index.md"}
    assert not [name(page) for page in recipes.glob("*.md") if page not in shown]
