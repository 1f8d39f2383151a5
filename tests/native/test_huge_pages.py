"""Huge pages are requested for whole pages of the machine, whose size a preloaded library makes 64 KiB."""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from timerheap._native._core import seal

PAGE = 64 << 10


def main() -> None:
    """Print where the request of a large `seal` began, its length, and where the bytes begin and end."""
    every = ctypes.CDLL(None)
    start, size = (ctypes.c_size_t.in_dll(every, name) for name in ("huge_start", "huge_size"))
    data = seal(16, bytes(5 << 20))
    first = id(data) + sys.getsizeof(data) - len(data) - 1  # behind the header, before the closing zero
    print(start.value, size.value, first, first + len(data))


@pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="of Linux and glibc")
def test_huge_pages_are_requested_from_a_page_on(tmp_path: Path) -> None:
    if "libasan" in os.environ.get("LD_PRELOAD", ""):
        pytest.skip("AddressSanitizer must be preloaded first")
    compiler = shutil.which("gcc") or pytest.skip("no gcc to compile the library with")
    library = tmp_path / "large_pages.so"
    source = Path(__file__).parents[1] / "c" / "large_pages.c"
    subprocess.run([compiler, "-O2", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    run = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "LD_PRELOAD": str(library)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    start, size, first, end = map(int, run.stdout.split())
    assert start % PAGE == 0
    assert size % PAGE == 0
    assert first <= start < first + PAGE
    assert end - PAGE < start + size <= end


if __name__ == "__main__":
    main()
