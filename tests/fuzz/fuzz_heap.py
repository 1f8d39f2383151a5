"""Fuzzes `from_bytes` and the bulk calls, guided by coverage of the compiled module: a part of `make fuzz`.

atheris drives (libFuzzer from Python). The module is compiled with TIMERHEAP_FUZZ=1, for the sanitizers and
for gcc's coverage, which coverage.c, compiled here, brings to libFuzzer. Arguments are libFuzzer's: -runs=N,
-seed=N, a folder for the corpus, or the file of a crash, to see it again.
"""

from __future__ import annotations

import ctypes
import hashlib
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
EVERY = 100_000  # inputs between two lines of progress
LIBRARY = "TIMERHEAP_FUZZ_LIBRARY"
MEGABYTES = 600  # of memory, where the process needs about 110
SANITIZER = {
    "detect_leaks": 0,  # the limit of memory sees them: Python leaves much behind at its end
    "verify_asan_link_order": 0,
    "allocator_may_return_null": 1,
    "abort_on_error": 1,
    "quarantine_size_mb": 8,
    "malloc_context_size": 3,
}


def preload() -> None:
    """Starts this program again with coverage.c and the sanitizers before everything else."""
    compiler = shutil.which("gcc") or sys.exit("gcc is missing: its sanitizers and its coverage are used")
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
    """Makes known to each other the libFuzzer inside of atheris and the compiled module's coverage."""
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
    shutil.rmtree(Path(os.environ[LIBRARY]).parent)  # loaded; what a crash starts does without
    del os.environ["LD_PRELOAD"]
    sys.path.insert(0, str(HERE))
    import heap_inputs

    for folder in filter(os.path.isdir, sys.argv[1:]):  # so that a new corpus has something to begin with
        for seed in heap_inputs.seeds():
            Path(folder, hashlib.sha1(seed).hexdigest()).write_bytes(seed)

    start, count = time.monotonic(), 0

    def one_input(data: bytes) -> None:
        nonlocal count
        heap_inputs.run(data)
        count += 1
        if count % EVERY == 0:
            rate = count / (time.monotonic() - start)
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            memory = pages * resource.getpagesize() >> 20
            print(f"{count:,} inputs without a finding, {rate:,.0f}/s, {memory} MiB resident", flush=True)

    atheris.Setup([*sys.argv, f"-rss_limit_mb={MEGABYTES}"], one_input, enable_python_coverage=False)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
