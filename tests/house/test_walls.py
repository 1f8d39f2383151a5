"""What must stand in one module of `timerheap.spark` alone: read off the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pyspark

PACKAGE = Path(__file__).resolve().parents[2] / "timerheap"
MODULES = sorted(PACKAGE.rglob("*.py"))
WITH_PYSPARK = [path for path in MODULES if "pyspark" in path.read_text()]


def by_name(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def documented(tree: ast.AST) -> set[int]:
    """The ids of the constants that are docstrings."""
    return {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}


def hidden_names(path: Path) -> Iterator[str]:
    """The places where a source spells the name of a hidden column."""
    tree = ast.parse(path.read_text())
    prose = documented(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and id(node) not in prose and "__timerheap" in str(node.value):
            yield f"{by_name(path)}:{node.lineno}"


def test_only_columns_spells_the_names_of_hidden_columns() -> None:
    spelled = [place for path in MODULES for place in hidden_names(path)]
    home = "timerheap/spark/_columns.py:"
    assert any(place.startswith(home) for place in spelled)
    assert not [place for place in spelled if not place.startswith(home)]


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


def test_only_compat_uses_what_is_private_in_pyspark() -> None:
    used = [
        f"{name} in {by_name(path)}:{line}"
        for path in WITH_PYSPARK
        if path.name != "_compat.py"
        for name, line in reached(path)
        if name in private_in_pyspark()
    ]
    assert not used, "write a function in _compat.py"


def test_what_is_private_in_pyspark_is_found() -> None:
    names = {"_as_nullable", "_child", "_df", "_expr", "_jdf", "_jvm", "_find_spark_home", "_timeout_conf"}
    assert names <= private_in_pyspark()


def test_no_two_top_level_functions_share_a_name() -> None:
    homes: dict[str, set[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("__"):
                homes.setdefault(node.name, set()).add(by_name(path))
    shared = {name: sorted(found) for name, found in homes.items() if len(found) > 1}
    assert not shared, "one name means one thing: rename one of them, or share the function"


RUN_IN_A_TASK = {"Runner", "BatchProcessFunction"}


def test_what_runs_in_a_task_is_in_a_file_that_is_called_so() -> None:
    """As docs/developing.md says of the files of a feature."""
    wrong = set()
    for path in (PACKAGE / "spark").rglob("*.py"):
        classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        bases = {ast.unparse(base) for node in classes for base in node.bases}
        if bases & RUN_IN_A_TASK and not path.stem.endswith(("_runner", "_runners")):
            wrong.add(path.relative_to(PACKAGE / "spark").as_posix())
    assert not wrong, "name it <x>_runner.py"


REACHED = 294  # names of private modules that tests import: lower it when there are fewer


def imported_names(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) of all that a source imports; a module that is imported as a whole is its own name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield node.module, alias.name
                yield f"{node.module}.{alias.name}", alias.name
        elif isinstance(node, ast.Import):
            yield from ((alias.name, alias.name) for alias in node.names)


def test_no_more_of_private_modules_is_reached_by_tests() -> None:
    """Names and not modules, so that a module can be split."""
    paths = [path.relative_to(PACKAGE.parent) for path in [*MODULES, PACKAGE / "_native" / "_core.pyx"]]
    modules = {".".join(path.with_suffix("").parts) for path in paths if not path.stem.startswith("__")}
    private = {name for name in modules if "._" in name}
    found = {pair for path in Path(__file__).parents[1].rglob("*.py") for pair in imported_names(path)}
    reached_by_tests = sorted({name for module, name in found if module in private})
    assert "spark_hashes" in reached_by_tests
    assert len(reached_by_tests) <= REACHED, f"show it by a public name instead: {reached_by_tests}"
