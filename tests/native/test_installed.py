"""The tests see what users get: the installed wheel, not the source tree."""

from __future__ import annotations

import os
import sysconfig
from importlib.metadata import files
from pathlib import Path

import pytest

import timerheap
from timerheap._native import _core

TREE = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def not_on_purpose() -> None:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if any(entry and Path(entry).resolve() == TREE for entry in entries):
        pytest.skip("PYTHONPATH names the source tree, so it is the tree that is wanted")


@pytest.mark.parametrize("module", [timerheap, _core], ids=["Python", "compiled"])
def test_the_package_is_imported_from_site_packages(module: object) -> None:
    site_packages = Path(sysconfig.get_path("platlib")).resolve()
    assert site_packages in Path(module.__file__).resolve().parents


def test_the_wheel_carries_what_typed_users_need() -> None:
    package = Path(timerheap.__file__).parent
    assert (package / "py.typed").is_file()
    assert (package / "_native" / "_core.pyi").is_file()
    assert (package / "spark" / "__init__.pyi").is_file()


def test_the_wheel_carries_no_source_of_the_compiled_module() -> None:
    assert not {file.suffix for file in files("timerheap")} & {".c", ".h", ".pyx", ".pxd", ".pxi"}
