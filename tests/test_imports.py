"""Imports run one way, and the core needs NumPy alone: read off the sources, and off a fresh interpreter."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "timerheap"

# The deepest first: a room may import itself and the lines above its own. "timerheap" is the package itself.
LAYERS = [
    "timer elements",
    "duration",
    "_csrc",
    "_heap",
    "hashing",
    "keys types clock snapshot",
    "key_groups serializers",
    "timer_bytes",
    "rocksdb",
    "queue",
    "service watermarks state",
    "timer_service manager",
    "functions returned",
    "windows tvf async_wait operators interval_join",
    "timerheap",
    "spark",
    "examples",
    "__main__",
]

LEVEL = {room: level for level, line in enumerate(LAYERS) for room in line.split()}
CORE = {room for room, level in LEVEL.items() if level <= LEVEL["timerheap"]}

SOURCES = sorted(
    path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".pyi", ".pyx", ".pxd", ".pxi"}
)
CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+(\S+)\s+c?import\s+([\w ,]+)|c?import\s+([\w.]+))", re.MULTILINE)


def room_of(path: Path) -> str:
    if path.suffix == ".pxi":
        return "_heap"  # which includes them
    first = path.relative_to(PACKAGE).parts[0].partition(".")[0]
    return "timerheap" if first == "__init__" else first


def imports(path: Path, *, when: str = "ever") -> Iterator[str]:
    """Dotted names that a source imports, "ever" (in functions, for types), or "loading" the module."""
    if path.suffix in {".pyx", ".pxd", ".pxi"}:
        for module, names, plain in CYTHON_IMPORT.findall(path.read_text()):
            yield from [f"{module}.{name.split()[0]}" for name in names.split(",")] if module else [plain]
        return
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: write timerheap.<room>, not a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif when == "loading" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif when == "loading" and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            pending.extend(node.orelse)
        else:
            pending.extend(ast.iter_child_nodes(node))


def rooms(path: Path) -> set[str]:
    """The rooms of this package that a source imports from."""
    parts = [name.split(".") for name in imports(path)]
    named = [names[1] if len(names) > 1 else "timerheap" for names in parts if names[0] == "timerheap"]
    return {name if name in LEVEL else "timerheap" for name in named}


def strangers(path: Path, when: str) -> set[str]:
    """The packages from elsewhere that a source imports."""
    tops = {name.partition(".")[0] for name in imports(path, when=when)}
    return tops - sys.stdlib_module_names - {"timerheap", "cython", "cpython", "libc", "libcpp"}


def by_name(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


@pytest.mark.parametrize("path", SOURCES, ids=by_name)
def test_a_room_has_a_place(path: Path) -> None:
    assert room_of(path) in LEVEL, "a new room: give it a line in LAYERS"


@pytest.mark.parametrize("path", SOURCES, ids=by_name)
def test_imports_go_down(path: Path) -> None:
    home = room_of(path)
    wrong = {room for room in rooms(path) if room != home and LEVEL[room] >= LEVEL[home]}
    assert not wrong, f"{home} stands below or beside {', '.join(sorted(wrong))}"


@pytest.mark.parametrize("path", SOURCES, ids=by_name)
def test_only_spark_and_the_examples_import_pyspark(path: Path) -> None:
    if room_of(path) not in {"spark", "examples"}:
        assert not strangers(path, "ever") & {"pyspark", "py4j"}


@pytest.mark.parametrize("path", [path for path in SOURCES if room_of(path) in CORE], ids=by_name)
def test_the_core_loads_numpy_alone(path: Path) -> None:
    assert strangers(path, "loading") <= {"numpy"}, "import it where it is used"


def test_importing_timerheap_loads_none_of_the_extras() -> None:
    program = "import sys; before = set(sys.modules); import timerheap; print(*set(sys.modules) - before)"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    outside = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    # NumPy and the Cython runtime may bring modules of their own; nothing else may come.
    known = ("numpy", "cython_runtime", "_cython_")
    assert {name for name in outside if not name.startswith(known)} == {"timerheap"}
    assert not {name for name in loaded if name.startswith("timerheap.spark")}
