"""Finds what looks like a measured figure in a page and does not come from a file of bench/results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

NUMBER = r"(?<![\w.,$/-])\d[\d,]*(?:\.\d+)?"
FEW = "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|hundred"
PARTS = "third|quarter|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|twentieth"
UNITS = (
    r"x\b",
    r" ?%",
    r" times (?:as|less|more|fewer|the|that|their|its|longer|faster|slower|Flink|Spark)\b",
    r" (?:ns|us|ms|s|(?:nano|micro|milli)seconds?)\b",
    r" (?:seconds|minutes|hours) (?:of CPU|on|in) ",
    r" [KMGT]i?B\b",
    r" bytes (?:a|for|per) ",
    r" (?:rows|events|keys|timers|requests|files|calls)(?:/s\b| a second)",
)
GENERATED = re.compile(r"^<!-- [\w.-]+(?:: [^>]*)? -->\n.*?<!-- end -->", re.DOTALL | re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(?<!`)(`+)(?!`)(?:(?!\n\n).)+?(?<!`)\1(?!`)", re.DOTALL)
MARKED = re.compile(r"\d[\d,]*(?:\.\d+)?<!-- [^>]* -->")
FOUND = "#"  # stands for a figure from a file, as long as it was
ANY = f"(?:{NUMBER}|{FOUND}+)"
MEASURED = re.compile(
    rf"{ANY}(?:(?:,| to| and| or|, and) {ANY})*(?:{'|'.join(UNITS)})"
    rf"|\b(?:{FEW}) times (?:as|less|more|the|their|that)\b"
    rf"|\b(?:a|{FEW}) (?:(?:nano|micro|milli)seconds?|seconds? of CPU|minutes? of CPU)\b"
    rf"|\b(?:repeats it in|takes about|took about) (?:a|{FEW}) (?:seconds?|minutes?|hours?)\b"
    rf"|\b(?:a|an|one|two|three|four) (?:{PARTS})s? of\b"
)
TABLE = re.compile(r"^\|.*\|$(?:\n^\|.*\|$)+", re.MULTILINE)
NUMERIC = re.compile(rf"[~*$]*{NUMBER}%?\**")


class Unfounded(NamedTuple):
    """A figure of a page without a file.

    start, end: where it is in the page
    text: the number with its unit; of a table, the first row
    """

    start: int
    end: int
    text: str


def unfounded(page: str) -> Iterator[Unfounded]:
    """Yield the figures of a page that no file has."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    rest = FENCE.sub(blank, GENERATED.sub(blank, page))
    rest = CODE.sub(lambda found: re.sub(r"[^\n]", "`", found[0]), rest)
    rest = MARKED.sub(lambda found: FOUND * len(found[0]), rest)
    for table in TABLE.finditer(rest):
        rows = table[0].splitlines()[2:]
        bare = [row for row in rows if any(NUMERIC.fullmatch(cell.strip()) for cell in row.split("|"))]
        if len(bare) > len(rows) / 2:
            yield Unfounded(table.start(), table.start() + table[0].index("\n"), rows[0])
    for found in MEASURED.finditer(rest.replace("\n", " ")):
        if re.search(r"\d", found[0]) or FOUND not in found[0]:
            yield Unfounded(*found.span(), found[0])


def not_allowed(page: str, phrases: list[str]) -> tuple[list[str], list[str]]:
    """Return the figures of a page outside of some phrases, and the phrases that allow none."""
    spans = {}
    for phrase in phrases:
        found = re.compile(r"\s+".join(map(re.escape, phrase.split()))).finditer(page)
        spans[phrase] = [match.span() for match in found]
    wrong, used = [], set()
    for figure in unfounded(page):
        around = {
            phrase
            for phrase, places in spans.items()
            if any(start <= figure.start and figure.end <= end + 1 for start, end in places)
        }
        used |= around
        if not around:
            line = page.count("\n", 0, figure.start) + 1
            wrong.append(f"line {line}: {figure.text.strip()}")
    return wrong, [phrase for phrase in phrases if phrase not in used]
