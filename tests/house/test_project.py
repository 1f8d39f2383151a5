"""What pyproject.toml says is as strict as it can be, and what the pages say of it is the same."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_mypy_is_strict_and_no_check_of_it_is_off(project):
    mypy = project["tool"]["mypy"]
    assert mypy["strict"] is True
    assert mypy.keys() == {"strict", "files", "python_version", "overrides"}
    assert mypy["files"] == ["timerheap"]


def test_only_packages_without_types_are_left_out_of_mypy(project):
    for override in project["tool"]["mypy"]["overrides"]:
        assert override.keys() == {"module", "ignore_missing_imports"}
        assert not [name for name in override["module"] if name.startswith(("timerheap", "*"))]


def test_only_the_extra_java_brings_a_java_runtime(project):
    extras = project["project"]["optional-dependencies"]
    bringing = {
        name for name, needs in extras.items() if any("java" in need or "jdk" in need for need in needs)
    }
    assert bringing == {"java"}


def test_pages_tools_and_classifiers_name_the_same_versions_of_python(project):
    named = [
        found[1] for text in project["project"]["classifiers"] if (found := re.search(r":: (3\.\d+)$", text))
    ]
    source = ast.parse((ROOT / "tools" / "release.py").read_text(encoding="utf-8"))
    (built,) = (
        ast.literal_eval(node.value)
        for node in source.body
        if isinstance(node, ast.Assign) and node.targets[0].id == "PYTHONS"
    )
    assert built == named
    assert project["project"]["requires-python"] == f">={named[0]}"
    ranges = {
        (page.name, text)
        for page in PAGES
        for text in re.findall(r"CPython (3\.\d+ to 3\.\d+)", page.read_text(encoding="utf-8"))
    }
    wanted = f"{named[0]} to {named[-1]}"
    assert ranges == {("README.md", wanted), ("platforms.md", wanted)}


def test_the_roadmap_and_the_table_of_versions_refuse_the_same_on_connect():
    def functions(text):
        return {name.rpartition(".")[2] for name in re.findall(r"`~?([\w.]+)`", text)}

    rows = (ROOT / "docs/compatibility/versions.md").read_text(encoding="utf-8").splitlines()
    cells = [row.split("|")[1:3] for row in rows if row.startswith("|") and row.count("|") == 3]
    refused = [what for what, answer in cells if answer.strip().startswith("refused")]
    roadmap = (ROOT / "docs/roadmap.md").read_text(encoding="utf-8").splitlines()
    (connect,) = (row for row in roadmap if row.startswith("| **Spark Connect**"))
    said = connect.split("|")[2].partition("[refused]")[0]
    assert functions(said) == functions(" ".join(refused))


HARMLESS = ("sparkSession", "persist", "unpersist")


def uses_of_batch(function):
    """Return how often a function of foreachBatch reads its DataFrame, beside its session and persist()."""
    batch = function.args.args[0].arg
    nodes = list(ast.walk(function))
    session = [node.value for node in nodes if isinstance(node, ast.Attribute) and node.attr in HARMLESS]
    calls = [node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    session += [node.args[0] for node in calls if node.func.id == "query_id"]
    names = [node for node in nodes if isinstance(node, ast.Name) and node.id == batch]
    return sum(node not in session for node in names)


def functions_of_batches(code):
    tree = ast.parse(code)
    passed = {
        node.args[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "foreachBatch"
        and isinstance(node.args[0], ast.Name)
    }
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in passed]


def test_a_micro_batch_that_a_page_reads_twice_is_persisted():
    found, wrong = 0, []
    codes = {
        page: re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S) for page in PAGES
    }
    codes |= {file: [file.read_text("utf-8")] for file in (ROOT / "examples").glob("*.py")}
    for page, blocks in codes.items():
        for block in blocks:
            if "foreachBatch" not in block:
                continue
            for function in functions_of_batches(block):
                found += 1
                if uses_of_batch(function) > 1 and ".persist()" not in ast.unparse(function):
                    wrong.append(f"{page.name}: {function.name}")
    assert found >= 7
    assert not wrong, "each use runs the operator again"
