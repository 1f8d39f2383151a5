"""The docstrings of the heaps describe arguments, results, errors, units and costs."""

import inspect
import re

import pytest

from timerheap import KeyTimerHeap, TimerHeap

SPECIAL = ["__iter__", "__contains__"]  # defined by Python's protocols
NO_RESULT = ["reserve", "clear"]


def documented():
    cases = {}
    for kind in (TimerHeap, KeyTimerHeap):
        for name in [*(name for name in dir(kind) if not name.startswith("_")), *SPECIAL]:
            member = inspect.getattr_static(kind, name)
            cases[f"{kind.__name__}.{name}"] = getattr(member, "__func__", member)
    return cases


CASES = documented()


def sections(text):
    """Return the numpydoc sections by name."""
    found = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(text), flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True)) | {"": found[0]}


@pytest.mark.parametrize("case", CASES)
def test_a_docstring_is_complete(case):
    value, name = CASES[case], case.split(".")[-1]
    parts = sections(value.__doc__)
    assert "O(" in value.__doc__, "no cost"
    if not callable(value):
        assert re.match(r"(ndarray of int64, shape \(len,\)|int): ", parts[""]), "a property without a type"
    elif name not in SPECIAL:
        arguments = [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]
        for argument in arguments:
            line = rf"^[\w*, ]*\b{argument}\b[\w*, ]* : "
            assert re.search(line, parts["Parameters"], re.MULTILINE), f"{argument} is not described"
        if arguments:
            assert re.search(r"(Type|Value|Overflow)Error", parts["Raises"]), "no errors"
        if any(argument.startswith(("timestamp", "watermark")) for argument in arguments):
            assert re.search(r"[Ee]poch milliseconds|`push|identity", value.__doc__), "no unit"
        assert name in NO_RESULT or "Returns" in parts or re.search(r"\b[Rr]eturn\b", parts[""]), "no result"


@pytest.mark.parametrize("kind", [TimerHeap, KeyTimerHeap])
def test_a_class_documents_capacity_and_threads(kind):
    parts = sections(kind.__doc__)
    assert "capacity : int" in parts["Parameters"]
    assert "Threads may share a heap" in parts["Notes"]
