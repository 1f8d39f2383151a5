"""Errors have names: the page shows the tree, and no argument is refused by a class of Python's own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import timerheap.errors

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "timerheap"
PAGE = ROOT / "docs" / "reference" / "errors.md"
BARE = {"NotImplementedError", "OverflowError", "TypeError", "ValueError"}
WORD = re.compile(rf"(?<![\w.`])({'|'.join(sorted(BARE))})\b")

# What the package itself catches, or words for its callers, by the module or the function that raises it.
SIGNALS = {
    "timerheap/flink/rocksdb_queue.py: _call": "the store is closed, as a file is",
    "timerheap/flink/timer_bytes.py": "its callers say which timers the bytes are of",
    "timerheap/flink/timer_service_manager.py: from_bytes": "caught in the next lines",
    "timerheap/spark/_exchange/codec.py": "a frame is made by another task of this version",
    "timerheap/spark/_exchange/reached.py: take": "a private file that only this executor writes",
    "timerheap/spark/_group/stored/chunks.py": "its callers say which chunk is damaged",
    "timerheap/spark/_live/free_space.py": "its callers load the group from the store instead",
    "timerheap/spark/_live/live_file.py": "its callers load the group from the store instead",
    "timerheap/spark/_memory/array_layouts.py: layout_of": "types are checked before",
    "timerheap/spark/_memory/blocks.py": "its callers load the group from the store instead",
    "timerheap/spark/_plan/computed_columns.py: one": "caught in the next lines, with what Spark raises",
    "timerheap/spark/_state/epoch_store.py: _index": "caught in the next lines, with what others raise",
    "timerheap/spark/_tvf/windows_part.py: __iter__": "its callers load the group from the store instead",
    "timerheap/spark/_worker/column_casts.py": "its callers name the column and the function",
    "timerheap/spark/_worker/runner.py": "for who writes a runner",
    "timerheap/testing/process_tester.py: load_group": "caught in the next lines, with what Arrow raises",
    "timerheap/watermarks/generators.py: _plain": "its caller names the attribute",
}


def sources() -> list[Path]:
    found = sorted(PACKAGE.rglob("*.py"))
    assert len(found) > 200
    return found


def functions(tree: ast.AST, name: str = "") -> Iterator[tuple[str, ast.Raise]]:
    """Yield each raise with the name of the innermost function around it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Raise):
            yield name, node
        inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from functions(node, node.name if inner else name)


def bare(path: Path) -> Iterator[tuple[str, int]]:
    for name, node in functions(ast.parse(path.read_text(encoding="utf-8"))):
        raised = node.exc.func if isinstance(node.exc, ast.Call) else node.exc
        is_abstract = node.exc is raised and ast.unparse(node) == "raise NotImplementedError"
        if isinstance(raised, ast.Name) and raised.id in BARE and not is_abstract:
            yield f"{path.relative_to(ROOT)}: {name}", node.lineno


def test_errors_are_raised_by_their_names() -> None:
    found = [place for path in sources() for place in bare(path)]
    known = [name if name in SIGNALS else name.partition(":")[0] for name, _ in found]
    assert not [place for place, name in zip(found, known, strict=True) if name not in SIGNALS]
    assert SIGNALS.keys() == set(known), "take it off the list"


def test_docstrings_name_the_classes_of_errors() -> None:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = {
        f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}": ast.get_docstring(node) or ""
        for path in sources()
        if path.name != "errors.py"  # which says of each what it is a kind of
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, documented)
    }
    assert sum("Raises\n---" in text for text in texts.values()) > 20
    assert not {place: found for place, text in texts.items() if (found := WORD.findall(text))}


def test_bare_errors_are_found() -> None:
    text = "def f():\n    def g():\n        raise ValueError('no')\n    raise TypeError\n"
    assert [name for name, _ in functions(ast.parse(text))] == ["g", "f"]
    assert WORD.findall("ValueError, ArgumentTypeError, `TypeError`") == ["ValueError"]


def tree_of(class_: type[Exception], indent: str = "") -> Iterator[str]:
    """Yield the lines of the tree below a class, as the page draws it."""
    below = [getattr(timerheap.errors, name) for name in timerheap.errors.__all__]
    children = [each for each in below if each.__bases__[0] is class_]
    children.sort(key=list(vars(timerheap.errors).values()).index)
    for each in children:
        last = each is children[-1]
        kinds = ", ".join(base.__name__ for base in each.__bases__[1:])
        line = f"{indent}{'└' if last else '├'}── {each.__name__}"
        yield f"{line:<36}({kinds})" if kinds else line
        yield from tree_of(each, indent + ("    " if last else "│   "))


def test_the_tree_of_the_page_is_that_of_the_classes() -> None:
    tree = "\n".join(["TimerheapError", *tree_of(timerheap.errors.TimerheapError)])
    assert tree in re.sub(r"^    ", "", timerheap.errors.__doc__ or "", flags=re.MULTILINE)
    text = PAGE.read_text(encoding="utf-8")
    assert tree in text
    assert set(timerheap.errors.__all__) <= set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE))
