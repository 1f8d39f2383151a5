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


def sections(text):
    """Return the numpydoc sections by name."""
    found = re.split(r"^(\w[\w ]*)\n-{3,}\n", inspect.cleandoc(text), flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True)) | {"": found[0]}


def missing(name, value):
    """Yield what a docstring does not say."""
    parts = sections(value.__doc__)
    if "O(" not in value.__doc__:
        yield "the cost"
    if not callable(value):
        if not re.match(r"(ndarray of int64, shape \(len,\)|int): ", parts[""]):
            yield "the type of a property"
    elif name not in SPECIAL:
        arguments = [name for name in inspect.signature(value).parameters if name not in ("self", "cls")]
        for argument in arguments:
            line = rf"^[\w*, ]*\b{argument}\b[\w*, ]* : "
            if not re.search(line, parts.get("Parameters", ""), re.MULTILINE):
                yield argument
        if arguments and not re.search(r"(Type|Value|Overflow)Error", parts.get("Raises", "")):
            yield "errors"
        timed = any(argument.startswith(("timestamp", "watermark")) for argument in arguments)
        if timed and not re.search(r"[Ee]poch milliseconds|`push|identity", value.__doc__):
            yield "the unit"
        if not (name in NO_RESULT or "Returns" in parts or re.search(r"\b[Rr]eturn\b", parts[""])):
            yield "the result"


def test_each_docstring_is_complete():
    cases = documented()
    assert len(cases) > 40
    found = {case: list(missing(case.split(".")[-1], value)) for case, value in cases.items()}
    assert not {case: what for case, what in found.items() if what}


@pytest.mark.parametrize("kind", [TimerHeap, KeyTimerHeap])
def test_a_class_documents_capacity_and_threads(kind):
    parts = sections(kind.__doc__)
    assert "capacity : int" in parts["Parameters"]
    assert "Threads may share a heap" in parts["Notes"]
