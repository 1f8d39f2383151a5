"""Timers, watermarks and windows inside Spark queries; of the public packages, only this needs pyspark.

Its names are imported when they are used: a Python worker, which needs few of them, starts sooner. The stub
beside this file says once, for type checkers and for programs, which module has each.
"""

import re
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

if not all(map(find_spec, ("pandas", "pyarrow", "pyspark"))):
    raise ImportError('timerheap.spark needs PySpark, pandas and PyArrow: pip install "timerheap[spark]"')


@cache
def _homes() -> dict[str, str]:
    """Return the module of each public name."""
    stub = Path(__file__).with_suffix(".pyi").read_text()
    found = re.findall(r"^from (\S+) import \(?\s*(\w+) as ", stub, re.MULTILINE)
    return {name: module for module, name in found}


def __getattr__(name: str) -> object:
    if name == "__all__":
        value: object = list(_homes())
    elif name in _homes():
        value = getattr(import_module(_homes()[name]), name)
    else:
        raise AttributeError(f"module 'timerheap.spark' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_homes()})
