"""Readers of the pages meet each public name, and no public function takes too many arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import getmembers, isclass, isroutine, signature
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = [
    "timerheap",
    "timerheap.async_io",
    "timerheap.errors",
    "timerheap.flink",
    "timerheap.spark",
    "timerheap.testing",
    "timerheap.tvf",
    "timerheap.watermarks",
    "timerheap.windows",
]
NEED_SPARK = {"timerheap.spark", "timerheap.testing"}
FENCE = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)

# Classes of objects that users are handed: they write the names in annotations only. The first page of the
# reference lists them.
ANNOTATIONS = {
    "AsyncInput",
    "BatchRuntimeContext",
    "BatchTimerService",
    "BatchValueState",
    "BroadcastState",
    "CountWindow",
    "Counter",
    "Distribution",
    "DistributionResult",
    "DueTimers",
    "GlobalWindow",
    "GroupedWindows",
    "InternalTimer",
    "Meter",
    "MetricGroup",
    "Output",
    "ReadOnlyBroadcastState",
    "Timer",
    "TimerBatch",
    "TimerService",
    "TimestampedValue",
    "Triggerable",
    "TypeInformation",
    "WatermarkOutput",
    "Windows",
}
MOST_PARAMETERS = 16
RETURNED = {"Progress"}  # no caller makes one, so the number of its fields is no burden


def code_of(page: Path) -> str:
    """Return the code of a page: its blocks, and what stands in backticks."""
    text = page.read_text(encoding="utf-8")
    return " ".join([*FENCE.findall(text), *re.findall(r"`[^`]+`", FENCE.sub("", text))])


def names_on_pages() -> set[str]:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    code = " ".join(code_of(page) for page in pages if ROOT / "docs" / "reference" not in page.parents)
    return set(re.findall(r"\w+", code))


def needing_spark(names: list[str]) -> list[Any]:
    return [pytest.param(name, marks=[pytest.mark.spark] * (name in NEED_SPARK)) for name in names]


@pytest.mark.parametrize("package", needing_spark(PACKAGES))
def test_a_page_beside_the_reference_has_each_public_name(package: str) -> None:
    names = set(import_module(package).__all__) - names_on_pages()
    assert names <= ANNOTATIONS, "show how to use them in a guide or a recipe, or make them private"


def test_the_reference_lists_the_names_that_are_for_annotations() -> None:
    text = (ROOT / "docs" / "reference" / "index.md").read_text(encoding="utf-8")
    paragraph = next(part for part in text.split("\n\n") if "annotations" in part)
    assert set(re.findall(r"`(\w+)`", paragraph)) == ANNOTATIONS
    assert not ANNOTATIONS & names_on_pages()


def callables(package: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the public functions and classes of a package, and the public methods of the classes."""
    module = import_module(package)
    for name in module.__all__:
        found = getattr(module, name)
        if callable(found) and name not in RETURNED:
            yield name, found
        if isclass(found):
            for method, value in getmembers(found, isroutine):
                if method[0] != "_":
                    yield f"{name}.{method}", value


@pytest.mark.spark
@pytest.mark.parametrize("package", sorted(NEED_SPARK))
def test_no_function_takes_more_than_16_arguments(package: str) -> None:
    numbers = {name: len(signature(found).parameters) for name, found in callables(package)}
    assert {name: number for name, number in numbers.items() if number > MOST_PARAMETERS} == {}
