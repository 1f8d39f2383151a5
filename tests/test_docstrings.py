"""All that the reference lists has a docstring, its own or that of what it overrides."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).resolve().parent.parent / "docs" / "reference"


def listed() -> Iterator[tuple[str, str]]:
    """Yield the module and the name of each entry of the reference."""
    for page in sorted(REFERENCE.glob("*.md")):
        module = ""
        for line in page.read_text().splitlines():
            if found := re.fullmatch(r"\.\. currentmodule:: (\S+)", line):
                module = found[1]
            elif found := re.fullmatch(r"   ([\w.]+)", line):
                yield module, found[1]


@pytest.mark.parametrize(("module", "name"), list(listed()))
def test_it_and_its_public_members_have_docstrings(module: str, name: str) -> None:
    found: Any = attrgetter(name)(import_module(module))
    attributes = inspect.classify_class_attrs(found) if inspect.isclass(found) else []
    foreign = {each.name for each in attributes if each.defining_class.__module__.startswith("pyspark.")}
    names = dir(found) if attributes else []
    members = [getattr(found, each) for each in names if each[0] != "_" and each not in foreign]
    documented = [
        each for each in (found, *members) if inspect.isroutine(each) or isinstance(each, (type, property))
    ]
    assert all(inspect.getdoc(each) for each in documented)
