"""What must stand in one module of `timerheap.spark` alone: read off the sources."""

from __future__ import annotations

import ast
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
