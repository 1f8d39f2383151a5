"""What must stand in one module of `timerheap.spark` alone: read off the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyspark
import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "timerheap"
MODULES = sorted(PACKAGE.rglob("*.py"))
WITH_PYSPARK = [path for path in MODULES if "pyspark" in path.read_text()]


def by_name(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def documented(tree: ast.AST) -> set[int]:
    """The ids of the constants that are docstrings."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


@pytest.mark.parametrize("path", MODULES, ids=by_name)
def test_only_columns_spells_the_names_of_hidden_columns(path: Path) -> None:
    tree = ast.parse(path.read_text())
    prose = documented(tree)
    spelled = [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and id(node) not in prose and "__timerheap_" in str(node.value)
    ]
    assert not spelled or by_name(path) == "timerheap/spark/_columns.py", f"lines {spelled}"


PYSPARK = Path(pyspark.__file__).parent

# Private names that PySpark has, too, of timerheap's own objects and of named tuples.
OURS = {"_attach", "_lock", "_replace"}


@cache
def private_in_pyspark() -> set[str]:
    """The names of private attributes and functions of PySpark."""
    sources = [path for room in ("core", "sql") for path in (PYSPARK / room).rglob("*.py")]
    text = "".join(
        path.read_text() for path in [*PYSPARK.glob("*.py"), *sources] if "tests" not in path.parts
    )
    return set(re.findall(r"(?:\bself\.|\bdef )(_[a-z]\w*)", text)) - OURS


def reached(path: Path) -> Iterator[tuple[str, int]]:
    """(name, line) of each attribute of another object, and of each import from PySpark."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) not in {"self", "cls"}:
            yield node.attr, node.lineno
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith("pyspark"):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "setattr", "hasattr"}:
            yield ast.unparse(node.args[1]).strip("'"), node.lineno


@pytest.mark.parametrize("path", WITH_PYSPARK, ids=by_name)
def test_only_compat_uses_what_is_private_in_pyspark(path: Path) -> None:
    used = [f"{name} in line {line}" for name, line in reached(path) if name in private_in_pyspark()]
    assert not used or path.name == "_compat.py", f"write a function in _compat.py for {used}"


def test_what_is_private_in_pyspark_is_found() -> None:
    names = {"_as_nullable", "_child", "_df", "_expr", "_jdf", "_jvm", "_find_spark_home", "_timeout_conf"}
    assert names <= private_in_pyspark()


REACHED = 51  # private modules of timerheap that tests import: lower it when there are fewer


def imported_modules(path: Path) -> Iterator[str]:
    """The dotted names that a source imports; each may be a module, or a name in one."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_no_more_private_modules_are_reached_by_tests() -> None:
    paths = [path.relative_to(PACKAGE.parent) for path in [*MODULES, PACKAGE / "_native" / "_core.pyx"]]
    modules = {".".join(path.with_suffix("").parts) for path in paths if not path.stem.startswith("__")}
    private = {name for name in modules if "._" in name}
    found = {name for path in Path(__file__).parent.rglob("*.py") for name in imported_modules(path)}
    reached_by_tests = sorted(found & private)
    assert "timerheap._native._core" in reached_by_tests
    assert len(reached_by_tests) <= REACHED, f"show it by a public name instead: {reached_by_tests}"
