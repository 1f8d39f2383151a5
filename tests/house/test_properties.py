"""A property reads: it assigns to no attribute, nor does a method of its object that it calls."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "timerheap"

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def sources() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


@cache
def classes() -> dict[str, ast.ClassDef]:
    nodes = (node for tree in sources().values() for node in ast.walk(tree))
    return {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}


def methods(class_: ast.ClassDef) -> dict[str, Function]:
    """The functions of a class and of its bases in the package."""
    found: dict[str, Function] = {}
    for base in class_.bases:
        name = ast.unparse(base).partition("[")[0].rpartition(".")[2]
        if name in classes() and name != class_.name:
            found |= methods(classes()[name])
    return found | {each.name: each for each in class_.body if isinstance(each, Function)}


def own_attributes(function: Function) -> Iterator[tuple[str, ast.Attribute, bool]]:
    """Each attribute of self in a function: its name, and whether it, or an item of it, is assigned to."""
    items = {
        id(node.value)
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            yield node.attr, node, id(node) in items or not isinstance(node.ctx, ast.Load)


def written(function: Function, own: dict[str, Function], seen: frozenset[str]) -> set[str]:
    """The attributes that a function assigns to, itself or in the methods of its object that it names."""
    found = {name for name, _, writes in own_attributes(function) if writes}
    for name, _, _ in own_attributes(function):
        if name in own and name not in seen:
            found |= written(own[name], own, seen | {name})
    return found


def properties(tree: ast.Module) -> Iterator[tuple[ast.ClassDef, Function]]:
    for class_ in ast.walk(tree):
        for function in class_.body if isinstance(class_, ast.ClassDef) else ():
            if isinstance(function, Function) and "property" in map(ast.unparse, function.decorator_list):
                assert isinstance(class_, ast.ClassDef)
                yield class_, function


def test_no_property_writes() -> None:
    found = {
        f"{class_.name}.{function.name} of {path.relative_to(PACKAGE.parent)}": sorted(
            written(function, methods(class_), frozenset({function.name}))
        )
        for path, tree in sources().items()
        for class_, function in properties(tree)
    }
    assert len(found) > 50
    assert not {name: names for name, names in found.items() if names}, "make it a method with a verb"


def test_a_property_that_writes_is_found() -> None:
    program = """
class Counted:
    @property
    def losses(self):
        self._gather()
        return self._losses

    def _gather(self):
        self._found[0] = 1
        self._losses += 1
"""
    ((class_, function),) = properties(ast.parse(program))
    assert written(function, methods(class_), frozenset()) == {"_found", "_losses"}
