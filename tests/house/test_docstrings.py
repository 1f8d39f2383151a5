"""All that the reference lists has a docstring, its own or that of what it overrides."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


def listed() -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each entry of the reference."""
    for page in sorted(REFERENCE.glob("*.md")):
        module = ""
        for line in page.read_text().splitlines():
            if found := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
                module = found[1]
            elif found := re.fullmatch(r"   ([\w.]+)", line):
                yield module, found[1]


def documented(module: str, name: str) -> Iterator[tuple[str, Any]]:
    """Yield an entry of the reference and its public members, with their names."""
    found: Any = attrgetter(name)(import_module(module))
    attributes = inspect.classify_class_attrs(found) if inspect.isclass(found) else []
    foreign = {each.name for each in attributes if each.defining_class.__module__.startswith("pyspark.")}
    names = [each for each in dir(found) if each[0] != "_" and each not in foreign] if attributes else []
    for at, each in ((name, found), *((f"{name}.{member}", getattr(found, member)) for member in names)):
        if inspect.isroutine(each) or isinstance(each, (type, property)):
            yield f"{module}.{at}", each


def test_all_that_the_reference_lists_has_docstrings() -> None:
    entries = list(listed())
    assert len(entries) > 150
    found = [each for module, name in entries for each in documented(module, name)]
    assert not [name for name, each in found if not inspect.getdoc(each)]
