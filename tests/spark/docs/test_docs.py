"""Every block of Python in the documentation runs and prints the output that the page shows."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from promises import APIS, markdown

import timerheap
import timerheap.async_io
import timerheap.errors
import timerheap.flink
import timerheap.spark
import timerheap.testing
import timerheap.tvf
import timerheap.watermarks
import timerheap.windows

ROOT = Path(__file__).resolve().parents[3]
README = ROOT / "README.md"
# Their programs run until they are stopped: test_readme.py, and tests/world for lakes and real-time mode.
ELSEWHERE = [README, ROOT / "docs/guides/milliseconds.md"]
ELSEWHERE += [ROOT / "docs/recipes" / page for page in ("balances.md", "kafka-and-delta.md")]
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
LANGUAGES = {"python", "sh", "sql", "text", "yaml", "Dockerfile"}  # what a fence may name, and directives
FENCE = re.compile(r"^```(?P<language>[^\n]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass
class Block:
    """A block of Python, its first line, and the output that the page shows."""

    code: str
    line: int
    output: str


def blocks(page: Path) -> Iterator[Block]:
    """Return the blocks of a page; a block of text directly after one is its output."""
    text = page.read_text(encoding="utf-8")
    fences = list(FENCE.finditer(text))
    for at, fence in enumerate(fences):
        if fence["language"] != "python":
            continue
        after = fences[at + 1] if at + 1 < len(fences) else None
        is_output = after is not None and after["language"] == "text"
        is_output = is_output and not text[fence.end() : after.start()].strip()
        line = text.count("\n", 0, fence.start("text"))
        yield Block(fence["text"], line, after["text"] if is_output else "")


def run_examples(block: Block, page: Path, names: dict[str, Any]) -> str:
    """Run a block in the form of an interpreter session; return its failures."""
    report: list[str] = []
    test = doctest.DocTestParser().get_doctest(block.code, {}, page.name, str(page), block.line)
    test.globs = names
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append, clear_globs=False)
    return "".join(report)


def run_program(block: Block, page: Path, names: dict[str, Any]) -> str:
    """Run a block that is a program; return the difference between its output and the page."""
    printed = StringIO()
    code = compile("\n" * block.line + block.code, str(page), "exec", dont_inherit=True)
    with redirect_stdout(printed):
        exec(code, names)
    got = "".join(line.rstrip() + "\n" for line in printed.getvalue().rstrip().splitlines())
    if doctest.OutputChecker().check_output(block.output, got, OPTIONS):
        return ""
    return f"{page.name}, line {block.line}: expected\n{block.output}\ngot\n{got}\n"


def with_shared(page: Path) -> list[Path]:
    """Return the pages whose blocks run: a folder's first page says what its others begin with."""
    shared = page.with_name("index.md")
    return list(dict.fromkeys([shared, page])) if shared.exists() else [page]


def case(page: Path) -> Any:
    """Return a page as a test parameter, marked if it needs Spark."""
    code = "".join(block.code for path in with_shared(page) for block in blocks(path))
    needs_spark = "pyspark" in code or "timerheap.spark" in code
    return pytest.param(page, id=str(page.relative_to(ROOT)), marks=[pytest.mark.spark] * needs_spark)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "page", [case(page) for page in PAGES if page not in ELSEWHERE and any(blocks(page))]
)
def test_the_code_of_a_page_prints_the_output_that_it_shows(
    page: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}  # so that its classes travel to workers by value
    if "tws_tester" in page.read_text(encoding="utf-8"):
        pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="new in PySpark 4.2")
    if request.node.get_closest_marker("spark"):
        request.getfixturevalue("settings_restored")
    wrong = ""
    for path in with_shared(page):
        for block in blocks(path):
            run = run_examples if ">>> " in block.code else run_program
            wrong += run(block, path, names)
    if wrong:
        pytest.fail(wrong, pytrace=False)


@pytest.fixture
def settings_restored(spark: Any) -> Iterator[None]:
    """Restore what a page changes; its builder returns the session of the tests."""
    before = spark.conf.getAll
    yield
    for name, value in spark.conf.getAll.items():
        if before.get(name) != value and spark.conf.isModifiable(name):
            spark.conf.set(name, before[name]) if name in before else spark.conf.unset(name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_of_code_names_a_known_language(page: Path) -> None:
    named = {fence["language"] for fence in FENCE.finditer(page.read_text(encoding="utf-8"))}
    assert {name for name in named if not name.startswith("{")} <= LANGUAGES


@pytest.mark.parametrize(
    "module",
    [
        timerheap,
        timerheap.async_io,
        timerheap.errors,
        timerheap.flink,
        timerheap.spark,
        timerheap.testing,
        timerheap.tvf,
        timerheap.watermarks,
        timerheap.windows,
    ],
    ids=lambda module: module.__name__,
)
def test_every_public_name_is_in_the_reference(module: ModuleType) -> None:
    reference = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/reference").glob("*.md"))
    listed = set(re.findall(r"^   (?:\w+\.)*(\w+)$", reference, re.MULTILINE))
    constants = set(re.findall(r"`timerheap\.(?:\w+\.)*([A-Z_]+)`", reference))
    assert set(module.__all__) <= listed | constants


def test_the_links_of_the_readme_lead_to_pages() -> None:
    links = re.findall(r"\]\((?!https?://)([^)#]*)[^)]*\)", README.read_text(encoding="utf-8"))
    assert len(links) > 10
    assert [link for link in links if not (ROOT / link).is_file()] == []


@pytest.mark.parametrize("api", APIS)
def test_a_page_shows_the_promises_of_each_api(api: str) -> None:
    shown = [page for page in PAGES if f"```{{promises}} {api}\n```\n" in page.read_text(encoding="utf-8")]
    assert [page.parent.name for page in shown] == ["compatibility"]
    assert len(markdown(api)) > 2
