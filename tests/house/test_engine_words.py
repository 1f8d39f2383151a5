"""The engine of `timerheap.spark` names no feature: read off its code, without docstrings and comments."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_imports import LAYERS, by_name, imports

SPARK = Path(__file__).resolve().parents[2] / "timerheap" / "spark"
ROOMS = ("_plan", "_exchange", "_worker", "_live", "_group", "_settling", "_memory")
ENGINE = [SPARK / "_query.py", *sorted(path for room in ROOMS for path in (SPARK / room).rglob("*.py"))]

FEATURES = re.compile(r"window|slicing|sql|rank|processor|changelog|_change_type|upsert", re.IGNORECASE)

# What Spark calls so.
OF_OTHERS = re.compile(
    r"pyspark(\.\w+)*"  # modules
    r"|spark\.sql(\.\w+)+"  # settings
    r"|sql\.streaming\.queryId|streaming\.sql\.batchId"  # properties of a task
    r"|StatefulProcessor(Handle)?"  # what every operator is to Spark
)

# The rooms above the engine, and those beside it that are features.
TOP = next(number for number, line in enumerate(LAYERS["spark"]) if "_plan" in line.split())
ABOVE = {room for line in LAYERS["spark"][TOP + 1 :] for room in line.split()} - {"__init__", "daemon"}
OUTSIDE = {
    f"timerheap.spark.{room}" for room in ABOVE | {"_rule_timers", "_stateful_timers", "_stored_windows"}
}


def words(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines and texts of all identifiers and string literals."""
    tree = ast.parse(path.read_text())
    prose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if id(node) in prose:
            continue
        for _, value in ast.iter_fields(node):
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str | bytes):
                    yield getattr(node, "lineno", 0), each if isinstance(each, str) else each.decode("latin1")


def test_the_engine_names_no_feature() -> None:
    assert len(ENGINE) > 30
    assert not [
        f"{text} in {by_name(path)}:{line}"
        for path in ENGINE
        for line, text in words(path)
        if FEATURES.search(OF_OTHERS.sub("", text))
    ]


@pytest.mark.parametrize(
    "text", ["WindowWork", "of_windows", "SQL", "dense_rank", "ListProcessor", "slicing"]
)
def test_names_of_features_are_found(text: str) -> None:
    assert FEATURES.search(OF_OTHERS.sub("", text))


@pytest.mark.parametrize(
    "text", ["pyspark.sql.types", "spark.sql.shuffle.partitions", "StatefulProcessorHandle"]
)
def test_names_of_others_are_allowed(text: str) -> None:
    assert not FEATURES.search(OF_OTHERS.sub("", text))


def test_the_engine_imports_no_feature() -> None:
    """Not even in a function, or for types."""
    assert not [
        f"{by_name(path)} imports {name}"
        for path in ENGINE
        for name in imports(path, "ever")
        if any(f"{name}.".startswith(f"{room}.") for room in OUTSIDE)
    ]
    assert not [by_name(path) for path in ENGINE if "import_module" in path.read_text()]


def test_the_engine_does_not_ask_what_it_runs() -> None:
    asked = [
        f"{by_name(path)}:{node.lineno}"
        for path in ENGINE
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in {"isinstance", "type", "issubclass"}
        and re.search(r"\b(work|runner|own|layout|start)\b", ast.unparse(node.args[0]))
    ]
    assert not asked


def test_the_page_for_developers_names_modules_that_exist() -> None:
    page = (SPARK.parents[1] / "docs" / "developing.md").read_text()
    named = set(re.findall(r"`(\w+(?:/\w+)*\.(?:py|c))`", page))
    assert len(named) > 40
    roots = [SPARK, SPARK.parents[1]]
    paths = [name for name in named if "/" in name or not list(SPARK.rglob(name))]  # or a file's name alone
    assert not [name for name in paths if not any((root / name).exists() for root in roots)]


def test_the_way_of_a_row_names_functions_that_exist() -> None:
    page = (SPARK.parents[1] / "docs" / "developing.md").read_text()
    way = page.partition("## The way of a row\n")[2].partition("\n## ")[0]
    named = re.findall(r"`(\w+(?:/\w+)*\.py)` \(`(\w+)`\)", way)
    assert len(named) > 20
    sources = {name: (SPARK / name).read_text() for name, _ in named if (SPARK / name).exists()}
    assert not [
        f"{name} of {file}"
        for file, name in named
        if not re.search(rf"^\s*(?:def|class) {name}\b", sources.get(file, ""), re.MULTILINE)
    ]


WORKS = """
import pkgutil, sys
from importlib import import_module
import timerheap.spark
from timerheap.spark._worker.work import Work

for module in pkgutil.walk_packages(timerheap.spark.__path__, "timerheap.spark."):
    import_module(module.name)
pending = [Work]
while pending:
    pending += (kinds := pending.pop().__subclasses__())
    print(*(kind.__module__ for kind in kinds), sep="\\n")
"""
IN_THE_DAEMON = """
import sys
from importlib import import_module
from timerheap.spark.daemon import MODULES

for name in MODULES:
    import_module(name)
print(*sys.modules, sep="\\n")
"""


def printed(program: str) -> set[str]:
    return set(subprocess.check_output([sys.executable, "-c", program], text=True).split())


def test_the_daemon_imports_the_modules_of_all_features() -> None:
    works = printed(WORKS)
    assert {"timerheap.spark._tvf.window_runner", "timerheap.spark._functions.row_runner"} <= works
    assert not works - printed(IN_THE_DAEMON), "add the module to daemon.MODULES"
