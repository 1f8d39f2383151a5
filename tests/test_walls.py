"""What must stand in one module of `timerheap.spark` alone: read off the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "timerheap"
MODULES = sorted(PACKAGE.rglob("*.py"))


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


# Private attributes of PySpark whose names timerheap has for attributes of its own, too.
OF_PYSPARK = {"_child", "_df", "_name", "_plan", "_session", "_value"}

OF_OTHERS = {
    "_asdict": "named tuples",
    "_replace": "named tuples",
    "_exit": "os",
    "_mgr": "pandas",
    "_blklocs": "pandas",
    "_blknos": "pandas",
    "_concat_same_type": "pandas",
    "_constructor_from_mgr": "pandas",
}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def defined(path: Path) -> Iterator[str]:
    """The private names that a source defines, of any kind."""
    if path.suffix != ".py":
        yield from re.findall(r"\b_\w+", path.read_text())
        return
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and of_self(node):
            yield node.attr


def of_self(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def reached(path: Path) -> Iterator[tuple[int, str]]:
    """(line, name) of each attribute of another object, and of each import from PySpark."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and not of_self(node):
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and str(node.module).startswith(("pyspark", "py4j")):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"getattr", "setattr", "hasattr"}:
            yield node.lineno, ast.unparse(node.args[1]).strip("'")


@cache
def known() -> set[str]:
    sources = [path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".pyx", ".pxi", ".pxd"}]
    return {name for path in sources for name in defined(path)} - OF_PYSPARK | OF_OTHERS.keys()


@pytest.mark.parametrize("path", MODULES, ids=by_name)
def test_only_compat_uses_what_is_private_in_pyspark(path: Path) -> None:
    used = [
        f"{name} in line {line}" for line, name in reached(path) if is_private(name) and name not in known()
    ]
    assert not used or by_name(path) == "timerheap/spark/_compat.py", f"not ours: {used}"
