"""Fuzz heap_inputs.py, key_inputs.py or run_inputs.py, guided by coverage: a part of `make fuzz`.

The fuzzer is atheris, libFuzzer for Python. The module is compiled with TIMERHEAP_FUZZ=1, which enables the
sanitizers and gcc's coverage; coverage.c, compiled here, passes the coverage to libFuzzer. The first argument
is the name of the inputs. The others are those of libFuzzer: -runs=N, -seed=N, a folder for the corpus, or
the file of a crash to reproduce.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import importlib.util
import os
import resource
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
EVERY = 10_000  # inputs between progress messages
LIBRARY = "TIMERHEAP_FUZZ_LIBRARY"
MEGABYTES = 600  # limit of memory; the process needs about 110, with PySpark 230
SANITIZER = {
    "detect_leaks": 0,  # Python does not free everything at exit; the memory limit detects leaks instead
    "verify_asan_link_order": 0,
    "allocator_may_return_null": 1,
    "abort_on_error": 1,
    "quarantine_size_mb": 8,
    "malloc_context_size": 3,
}


def preload() -> None:
    """Restart this program with coverage.c and the sanitizers preloaded."""
    compiler = shutil.which("gcc") or sys.exit("gcc must be installed, for its sanitizers and its coverage")
    if importlib.util.find_spec("atheris") is None:
        sys.exit("atheris is missing: `make fuzz` installs it, on Linux with CPython 3.11 to 3.13")
    library = Path(tempfile.mkdtemp(prefix="timerheap-fuzz-")) / "coverage.so"
    source = HERE / "coverage.c"
    subprocess.run([compiler, "-std=c11", "-O2", "-shared", "-fPIC", source, "-o", library], check=True)
    preloaded = [str(library)]
    for name in ("libasan.so", "libubsan.so"):
        ask = [compiler, f"-print-file-name={name}"]
        preloaded.append(subprocess.run(ask, check=True, stdout=subprocess.PIPE, text=True).stdout.strip())
    os.environ["LD_PRELOAD"] = " ".join(preloaded)
    os.environ["ASAN_OPTIONS"] = ":".join(f"{name}={value}" for name, value in SANITIZER.items())
    os.environ[LIBRARY] = str(library)
    os.execv(sys.executable, [sys.executable, *sys.argv])


def attach(library: str) -> None:
    """Connect the libFuzzer in atheris with the coverage of the compiled module."""
    import atheris

    name = "core_with_libfuzzer" + sysconfig.get_config_var("EXT_SUFFIX")
    core = ctypes.CDLL(str(Path(atheris.__file__).parent / name))
    callbacks = ["8bit_counters_init", "trace_cmp8", "trace_const_cmp8", "trace_cmp4", "trace_const_cmp4"]
    callbacks.append("trace_switch")
    pointers = [ctypes.cast(getattr(core, f"__sanitizer_cov_{name}"), ctypes.c_void_p) for name in callbacks]
    ctypes.CDLL(library).attach(*pointers)


def main() -> None:
    if LIBRARY not in os.environ:
        preload()
    import atheris

    attach(os.environ[LIBRARY])
    shutil.rmtree(Path(os.environ[LIBRARY]).parent)  # it is loaded, and child processes do not need it
    del os.environ["LD_PRELOAD"]
    sys.path.insert(0, str(HERE))
    name, *arguments = sys.argv[1:]
    inputs = importlib.import_module(name)

    for folder in filter(os.path.isdir, arguments):  # so that a new corpus is not empty
        for seed in inputs.seeds():
            Path(folder, hashlib.sha1(seed).hexdigest()).write_bytes(seed)

    start, count = time.monotonic(), 0

    def one_input(data: bytes) -> None:
        nonlocal count
        inputs.run(data)
        count += 1
        if count % EVERY == 0:
            rate = count / (time.monotonic() - start)
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            memory = pages * resource.getpagesize() >> 20
            print(f"{count:,} inputs without a finding, {rate:,.0f}/s, {memory} MiB resident", flush=True)

    options = [sys.argv[0], *arguments, f"-rss_limit_mb={MEGABYTES}"]
    atheris.Setup(options, one_input, enable_python_coverage=False)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
