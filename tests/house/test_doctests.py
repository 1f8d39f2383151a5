"""Every example in a docstring, of compiled classes too, says what really comes out."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from types import GetSetDescriptorType, ModuleType

import pytest

import timerheap

PARSER = doctest.DocTestParser()
NAMES = [module.name for module in pkgutil.walk_packages(timerheap.__path__, "timerheap.")]


def documented(module: ModuleType) -> Iterator[tuple[str, object]]:
    """What carries a docstring: the module, its functions and classes, their methods and properties."""
    yield module.__name__, module
    for name, value in vars(module).items():
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isroutine(value) or inspect.isclass(value):
            yield f"{module.__name__}.{name}", value
        if inspect.isclass(value):
            for member_name, member in vars(value).items():
                if isinstance(member, classmethod | staticmethod):
                    member = member.__func__
                if inspect.isroutine(member) or isinstance(member, property | GetSetDescriptorType):
                    yield f"{module.__name__}.{name}.{member_name}", member


def run(*tests: doctest.DocTest) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    report: list[str] = []
    for test in tests:
        runner.run(test, out=report.append)
    if runner.failures:
        pytest.fail("".join(report), pytrace=False)


def test_every_example_shows_what_comes_out() -> None:
    names = ["timerheap", *(name for name in NAMES if not name.endswith("__main__"))]
    modules = [importlib.import_module(name) for name in names]
    examples = [
        PARSER.get_doctest(value.__doc__ or "", vars(module).copy(), path, module.__file__, None)
        for module in modules
        for path, value in documented(module)
    ]
    assert sum(bool(test.examples) for test in examples) > 50
    run(*examples)
