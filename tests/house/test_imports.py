"""Imports run one way, and the core needs NumPy alone: read off the sources, and off a fresh interpreter."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import pytest

import timerheap
import timerheap.spark

PACKAGE = Path(__file__).resolve().parents[2] / "timerheap"

# The rooms of the package and of its largest part, the deepest first: a room may import the lines above its
# own, and no other. A room is a module or a subpackage; "__init__" is the package's own face. How the modules
# of a room import each other is left to the room.
LAYERS = {
    "": [
        "errors",
        "_arguments _moments _private metrics row time types",
        "_java state_ttl timer",
        "output_tag _values state",
        "_native functions",
        "_contents _key_timers _row_context",
        "_expiry",
        "_states broadcast hashing interval_join tvf watermarks",
        "windows",
        "__init__",
        "async_io",
        "spark",
        "_local_spark testing",
        "_inspect",
        "__main__ flink",
    ],
    "spark": [
        "_arrow _columns _event_times _frozen_modules _observed _order_by",
        "_compat _memory _python_rows _sockets _stored_windows",
        "_settling",
        "_flows _group _local_python",
        "_live _query _row_objects _rule_timers",
        "_exchange _run_settings _settings _stateful_timers",
        "_worker",
        "_run_checks",
        "_plan",
        "_functions _pipeline_table _progress _side_outputs",
        "_state",
        "_async_map _available_now _processors _prometheus",
        "_real_time",
        "_modes",
        "_aggregates _continued _process _rules",
        "_changes",
        "_asof _patterns _tvf _windows",
        "_doctor _sinks",
        "_sql",
        "__init__ daemon",
    ],
    "spark._sql": [
        "options over_calls table_function",
        "nodes run",
        "read",
        "plan rewrite",
        "sql",
        "script sql_rule",
        "__init__",
    ],
}

LEVELS = {
    wing: {room: level for level, line in enumerate(lines) for room in line.split()}
    for wing, lines in LAYERS.items()
}
WITH_PYSPARK = {"spark", "_inspect", "_local_spark", "testing"}
CORE = LEVELS[""].keys() - WITH_PYSPARK - {"__main__"}

SOURCES = sorted(
    path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".pyi", ".pyx", ".pxd", ".pxi"}
)
CYTHON_IMPORT = re.compile(r"^\s*(?:from\s+(\S+)\s+c?import\s+([\w ,]+)|c?import\s+([\w.]+))", re.MULTILINE)


def path_in_package(path: Path) -> list[str]:
    """The rooms on the way to a source, from the outermost."""
    *folders, name = path.relative_to(PACKAGE).parts
    return [*folders, "_core" if path.suffix in {".pxi", ".pxd"} else name.partition(".")[0]]


def rooms_of(path: Path) -> Iterator[tuple[str, str]]:
    """(wing, room) at each depth of a source's path."""
    parts = path_in_package(path)
    for depth, room in enumerate(parts):
        yield ".".join(parts[:depth]), room


@cache
def imports(path: Path, when: str) -> list[str]:
    """Dotted names that a source imports, "ever" (in functions, for types), or "loading" the module."""
    return list(found_imports(path, when))


def found_imports(path: Path, when: str) -> Iterator[str]:
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


def imported_rooms(path: Path, wing: str) -> set[str]:
    """The rooms of a wing that a source imports from; a name that is no room is the wing's face."""
    prefix = ["timerheap", *(wing.split(".") if wing else [])]
    parts = [name.split(".") for name in imports(path, "ever")]
    inside = [
        names[len(prefix)] for names in parts if names[: len(prefix)] == prefix and len(names) > len(prefix)
    ]
    return {room if room in LEVELS[wing] else "__init__" for room in inside}


def test_no_module_imports_one_that_imports_it() -> None:
    """Not even in a function, or for types; the face of a package counts only as itself."""
    modules = {
        ".".join(["timerheap", *path_in_package(path)]): path for path in SOURCES if path.suffix == ".py"
    }
    graph = {
        module: {
            found
            for name in imports(path, "ever")
            for found in [name if name in modules else name.rpartition(".")[0]]
            if found in modules and found != module
        }
        for module, path in modules.items()
    }
    assert list(TopologicalSorter(graph).static_order()), "raises CycleError with the circle"


def strangers(path: Path, when: str) -> set[str]:
    """The packages from elsewhere that a source imports."""
    tops = {name.partition(".")[0] for name in imports(path, when)}
    return tops - sys.stdlib_module_names - {"timerheap", "cython", "cpython", "libc", "libcpp"}


def by_name(path: Path) -> str:
    return str(path.relative_to(PACKAGE.parent))


def test_there_are_sources() -> None:
    assert len(SOURCES) > 200


def test_every_source_has_a_place() -> None:
    placed = ((path, wing, room) for path in SOURCES for wing, room in rooms_of(path) if wing in LEVELS)
    homeless = [by_name(path) for path, wing, room in placed if room not in LEVELS[wing]]
    assert not homeless, "new rooms: give each a line in LAYERS"


def climbs(path: Path) -> Iterator[str]:
    """What a source imports from a room that is not below its own."""
    for wing, home in rooms_of(path):
        levels = LEVELS.get(wing, {})
        if home in levels:
            wrong = {r for r in imported_rooms(path, wing) if r != home and levels[r] >= levels[home]}
            yield from (f"{by_name(path)} imports {room}, which is not below {home}" for room in wrong)


def test_imports_go_down() -> None:
    assert not sorted(wrong for path in SOURCES for wrong in climbs(path))


@pytest.mark.parametrize("wing", ["spark", "flink"])
def test_module_names_inside_a_wing_are_unique(wing: str) -> None:
    names = [path.stem for path in (PACKAGE / wing).rglob("*.py") if path.stem != "__init__"]
    assert sorted(names) == sorted(set(names))


def test_names_of_public_classes_are_unique() -> None:
    classes = [
        node.name
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]
    assert sorted(classes) == sorted(set(classes))


def hidden_by(face: Path) -> set[str]:
    """The modules of a package that a name of its face has, too."""
    modules = {path.stem for path in face.parent.iterdir()}
    return modules & {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(face.read_text()))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_no_name_of_a_package_hides_one_of_its_modules() -> None:
    hidden = {by_name(face): hidden_by(face) for face in sorted(PACKAGE.rglob("__init__.py"))}
    assert not {face: names for face, names in hidden.items() if names}


def test_only_spark_and_the_command_line_import_pyspark() -> None:
    others = [path for path in SOURCES if path_in_package(path)[0] not in WITH_PYSPARK]
    assert not [by_name(path) for path in others if strangers(path, "ever") & {"pyspark", "py4j"}]


def test_the_core_loads_numpy_alone() -> None:
    loaded = {
        by_name(path): strangers(path, "loading") - {"numpy"}
        for path in SOURCES
        if path_in_package(path)[0] in CORE
    }
    assert not {path: names for path, names in loaded.items() if names}, "import it where it is used"


@pytest.mark.parametrize("package", ["pyspark", "pandas", "pyarrow"])
def test_importing_timerheap_spark_without_its_requirements_says_what_to_install(package: str) -> None:
    program = f"import sys; sys.modules[{package!r}] = None; import timerheap.spark"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    message = 'ImportError: timerheap.spark needs PySpark, pandas and PyArrow: pip install "timerheap[spark]"'
    assert done.stderr.splitlines()[-1] == message


IN_A_WORKER = """
import pickle, sys
pickle.load(sys.stdin.buffer)
print(*sys.modules)
"""


def loaded_by(made: str) -> set[str]:
    """The modules that a new Python worker has once it has unpickled what a program has made."""
    program = (
        f"import sys; from pyspark import cloudpickle\n{made}\nsys.stdout.buffer.write(cloudpickle.dumps(it))"
    )
    pickled = subprocess.check_output([sys.executable, "-c", program])
    return set(subprocess.check_output([sys.executable, "-c", IN_A_WORKER], input=pickled).decode().split())


OPERATOR = """
from pyspark.sql.types import StructType
from timerheap import KeyedProcessFunction, WatermarkStrategy
from timerheap.spark._query import Query
from timerheap.spark._worker.spark_operators import StreamingOperator
from timerheap.spark._functions.row_runner import RowWork

class Counts(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value

rows = StructType().add("k", "string").add("at", "long")
query = Query(
    work=RowWork(Counts()), key=["k"], rows=rows, result=rows, event_time="at",
    watermarks=(WatermarkStrategy.for_monotonous_timestamps(),), channels=(None,), order="event_time",
    time_mode="None", max_parallelism=1,
)
it = StreamingOperator(query, None)
"""
PROCESSOR = "from timerheap.spark._processors.processor_partition import ProcessorPartition as it"
PACKER = "from timerheap.spark._exchange.packer import Packer; it = Packer('k', None, None)"
WINDOWS = "from timerheap.spark._windows.operator_runner import HostedWindows as it"
CALLS = "from timerheap.spark._async_map import Mapper as it"
ACCUMULATORS = "from timerheap.spark._aggregates.accumulator_columns import AccumulatorColumns as it"
OVER = "from timerheap.spark._sql.run.over_runner import OverRunner as it"
OF_THE_DRIVER = (
    "timerheap.spark._plan",
    "timerheap.spark._process.process",
    "timerheap.spark._sql.plan",
    "timerheap.spark._sql.read",
    "timerheap.spark._sql.rewrite",
    "timerheap.spark._tvf.window_plan",
    "timerheap.spark._windows.window_operator",
    "sqlglot",
    "rich",
)
OF_OTHERS = ("timerheap.flink", "timerheap.tvf", "timerheap.windows", "timerheap.async_io")


@pytest.mark.parametrize(
    ("made", "spared"),
    [
        (OPERATOR, OF_OTHERS),
        (PROCESSOR, OF_OTHERS),
        (PACKER, (*OF_OTHERS, "timerheap.spark._worker", "pandas")),
        (WINDOWS, ("timerheap.flink", "timerheap.tvf")),
        (CALLS, ("timerheap.windows", "timerheap.tvf")),
        (ACCUMULATORS, ("timerheap.windows", "timerheap.spark._sql", "timerheap.spark._tvf")),
        (OVER, ("timerheap.windows", "timerheap.spark._tvf")),
    ],
    ids=["operator", "processor", "packer", "window operator", "async map", "accumulators", "over"],
)
def test_a_worker_imports_what_its_rows_need(made: str, spared: tuple[str, ...]) -> None:
    names = loaded_by(made)
    assert "timerheap.spark" in names
    assert not {name for name in names if name.startswith((*OF_THE_DRIVER, *spared))}


def test_only_those_who_ask_for_flink_load_it() -> None:
    asked = "timerheap", "timerheap.async_io", "timerheap.spark", "timerheap.testing", "timerheap.windows"
    program = "; ".join(f"from {package} import *" for package in asked) + "; import sys; print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert {"timerheap.spark._process.process", "timerheap.testing.process_tester"} <= {*loaded}
    assert not {name for name in loaded if f"{name}.".startswith("timerheap.flink.")}


def test_only_flink_imports_flink() -> None:
    assert not [
        f"{by_name(path)} imports {name}"
        for path in SOURCES
        if path_in_package(path)[0] != "flink"
        for name in imports(path, "ever")
        if f"{name}.".startswith("timerheap.flink.")
    ]


def test_the_face_of_spark_has_each_name_in_its_module() -> None:
    face = ast.parse((PACKAGE / "spark" / "__init__.pyi").read_text())
    imported = [node for node in face.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: node.module for node in imported for alias in node.names}
    assert sorted(homes) == sorted(timerheap.spark.__all__)
    assert len(homes) == sum(len(node.names) for node in imported)
    assert set(homes) <= set(dir(timerheap.spark))
    for name, home in homes.items():
        assert getattr(timerheap.spark, name) is getattr(import_module(str(home)), name)
    with pytest.raises(AttributeError, match="has no attribute 'absent'"):
        timerheap.spark.absent  # noqa: B018


def test_the_version_is_that_of_the_installed_package() -> None:
    assert timerheap.__version__ == version("timerheap")


def test_importing_timerheap_loads_none_of_the_extras() -> None:
    program = "import sys; before = set(sys.modules); import timerheap; print(*set(sys.modules) - before)"
    loaded = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    outside = {name.partition(".")[0] for name in loaded} - sys.stdlib_module_names
    # NumPy and the Cython runtime may bring modules of their own; nothing else may come.
    known = ("numpy", "cython_runtime", "_cython_")
    assert {name for name in outside if not name.startswith(known)} == {"timerheap"}
    assert not {name for name in loaded if name.startswith("timerheap.spark")}
    assert "importlib.metadata" not in loaded, "a fifth of what the import would cost; see __version__"
