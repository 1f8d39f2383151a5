"""The one compiled module. What is constant about the package is in pyproject.toml.

TIMERHEAP_SANITIZE=1 builds with AddressSanitizer and UndefinedBehaviorSanitizer, TIMERHEAP_FUZZ=1 with both
and with gcc's coverage for a fuzzer, TIMERHEAP_DEBUG=1 for gdb.
"""

import os
import re
import sys
import tomllib
from glob import glob
from pathlib import Path

import numpy
from Cython.Build import cythonize
from setuptools import Extension, setup

fuzz = os.environ.get("TIMERHEAP_FUZZ") == "1"
sanitize = fuzz or os.environ.get("TIMERHEAP_SANITIZE") == "1"
debug = os.environ.get("TIMERHEAP_DEBUG") == "1"

link_args = []
if sys.platform == "win32":
    compile_args = ["/std:c11", "/Od" if debug else "/O2"]
else:
    compile_args = ["-std=c11", "-fvisibility=hidden"]
    if sanitize:
        link_args = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
        compile_args += ["-O1", "-g", "-fno-omit-frame-pointer", *link_args]
    else:
        compile_args += ["-O0", "-g"] if debug else ["-O3", "-g0"]
    if fuzz:
        compile_args += ["-fsanitize-coverage=trace-pc,trace-cmp"]

extension = Extension(
    "timerheap._native._core",
    sources=["timerheap/_native/_core.pyx", *sorted(glob("csrc/*.c"))],
    depends=["timerheap/_native/_csrc.pxd", *glob("timerheap/_native/*.pxi"), *glob("csrc/*.h")],
    include_dirs=["csrc", numpy.get_include()],
    define_macros=[
        ("NPY_NO_DEPRECATED_API", "NPY_2_0_API_VERSION"),
        ("NPY_TARGET_VERSION", "NPY_2_0_API_VERSION"),
    ],
    extra_compile_args=compile_args,
    extra_link_args=link_args,
)


def readme():
    """Return the README, whose links lead to the files of this version where the project is published."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    text = Path("README.md").read_text(encoding="utf-8")
    source = project.get("urls", {}).get("Source")
    if source is None:
        return text
    return re.sub(r"\]\((?!\w+:)", f"]({source}/blob/v{project['version']}/", text)


setup(
    ext_modules=cythonize([extension], language_level=3),
    long_description=readme(),
    long_description_content_type="text/markdown",
)
