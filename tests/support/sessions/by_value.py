"""Functions of tests, pickled by value: no worker has their modules on its path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from children import helpers
from pyspark import cloudpickle

__all__ = ["by_value"]

TREE = Path(__file__).resolve().parents[3]
FOLDERS = [*map(Path, helpers()), TREE / "examples"]


@contextmanager
def by_value(module: ModuleType) -> Iterator[None]:
    """Pickle the functions of a test module, of the helpers and of the examples by value."""
    names = [path.stem for folder in FOLDERS for path in folder.glob("*.py")]
    modules = [module, *(sys.modules[name] for name in names if name in sys.modules)]
    for one in modules:
        cloudpickle.register_pickle_by_value(one)
    yield
    for one in modules:
        cloudpickle.unregister_pickle_by_value(one)
