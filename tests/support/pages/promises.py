"""What timerheap promises of other APIs, read off the markers of the tests that hold it.

A test that holds a promise says so::

    @pytest.mark.promises("PyFlink", "supported", "ListState.add", "ListState.get")
    @pytest.mark.promises("PyFlink", "refused", "OutputTag", note="yield rows of another kind")
    def test_...

First the API, one of `APIS`; then the status, one of `STATUSES`; then names as that API spells them. A note
says in a few words what differs, or what to do instead; only "supported" and "added" need none. All arguments
are literals, since the documentation reads them off the source without importing it: each page of
docs/compatibility shows the promises of one API. Several tests may hold one name, with one status and note.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["APIS", "STATUSES", "Promise", "markdown", "promises", "promises_of"]

APIS = ["PyFlink", "StatefulProcessor", "Flink SQL"]
STATUSES = ["supported", "different", "refused", "added"]

_ORDER = ["refused", "different", "added", "supported"]  # of the table
_TESTS = Path(__file__).resolve().parents[2]


class Promise(NamedTuple):
    """What one test holds of one name."""

    api: str
    status: str
    name: str
    note: str
    test: str


def promises(folder: Path = _TESTS) -> list[Promise]:
    """Return the promises of all tests in a folder.

    Raises
    ------
    ValueError
        If a marker is not as above, or two promises of a name contradict each other.
    """
    found = [promise for path in sorted(folder.rglob("test_*.py")) for promise in _of_file(path, folder)]
    first: dict[tuple[str, str], Promise] = {}
    for promise in found:
        other = first.setdefault((promise.api, promise.name), promise)
        if (promise.status, promise.note) != (other.status, other.note):
            raise ValueError(f"promises of {promise.name} must agree, got {other} and {promise}")
    return found


def promises_of(api: str, folder: Path = _TESTS) -> dict[str, str]:
    """Return the status of each promised name of an API."""
    return {promise.name: promise.status for promise in promises(folder) if promise.api == api}


def markdown(api: str, status: str | None = None, folder: Path = _TESTS) -> list[str]:
    """Return the table of an API as Markdown: names of a class that share status and note are in one line.

    What is not the same comes first. With a status, the table has only the names of that status.
    """
    lines = ["| name | | note |", "|---|---|---|"]
    if status is not None and status not in STATUSES:
        raise ValueError(f"status must be one of {STATUSES}, got {status!r}")
    found = [
        promise for promise in promises(folder) if promise.api == api and status in (None, promise.status)
    ]
    same: dict[tuple[int, str, str], list[str]] = {}
    for name, its_status, note in sorted({(promise.name, promise.status, promise.note) for promise in found}):
        of, _, last = name.rpartition(".") if " " not in name else ("", "", name)
        same.setdefault((_ORDER.index(its_status), of, note), []).append(last)
    for (order, of, note), names in sorted(same.items()):
        listed = ", ".join(f"`{name}`" for name in names)
        shown = f"`{of}`: {listed}" if of else listed
        lines.append(f"| {shown} | {_ORDER[order]} | {note} |".replace("  ", " "))
    return lines


def _of_file(path: Path, folder: Path) -> Iterator[Promise]:
    text = path.read_text(encoding="utf-8")
    if "promises(" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef):
            continue
        for decorator in node.decorator_list:
            for call in ast.walk(decorator):  # a parameter of a test may be marked, too
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.promises":
                    yield from _of_marker(call, f"{path.relative_to(folder)}::{node.name}")


def _of_marker(call: ast.Call, test: str) -> Iterator[Promise]:
    api, status, *names = map(ast.literal_eval, call.args)
    note = next((ast.literal_eval(keyword.value) for keyword in call.keywords if keyword.arg == "note"), "")
    if api not in APIS or status not in STATUSES or not names:
        raise ValueError(
            f"a promise must be of one of {APIS}, have one of {STATUSES}, and names, got {api!r}, {status!r} "
            f"and {names} in {test}"
        )
    if status in ("different", "refused") and not note:
        raise ValueError(f"a promise that is {status} must have a note, got none for {names[0]} in {test}")
    yield from (Promise(api, status, name, note, test) for name in names)
