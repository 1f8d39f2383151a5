"""Say which lines of Python, Cython and C the tests run: ``make coverage``.

A copy of the package is compiled for gcov in out/coverage/tree, without optimization, and the tests import
that copy. Cython says in the C file which line of its sources each statement comes from, so that gcov counts
these. The C tests are added. The table by folder goes to out/coverage/table.md, the lines that no test has
run to out/coverage/python.txt and out/coverage/c.txt.

Python is measured in the process of the tests and in all that it starts, Spark's workers among them unless a
signal ends them: Spark ends a worker that it has kept for the next task by SIGHUP, and the handler for it
that this script gives the workers saves first. SIGKILL loses what the process has run, in Python and in C.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "out/coverage"
TREE = OUT / "tree"
QUICK = ["-m", "not spark and not slow", "-k", "not rocksdb"]
COPIED = ["timerheap", "csrc", "tests/c", "setup.py", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"]

CONFIG = f"""[run]
source_pkgs = timerheap
data_file = {OUT}/data/coverage
parallel = true
patch = subprocess, _exit
disable_warnings = no-data-collected, module-not-imported, module-not-measured
[paths]
source =
    {TREE}/timerheap
    */site-packages/timerheap
[report]
exclude_also =
    if TYPE_CHECKING:
    @overload
    raise NotImplementedError
"""

# In the folder of the copy, so that each interpreter that imports the copy runs it when it starts.
SITE = """
import os, signal

def _saving(number, frame):
    os._exit(128 + number)  # coverage.py's, which saves

_signal = signal.signal
def _set(number, handler):
    if number == signal.SIGHUP and handler == signal.SIG_DFL:
        handler = _saving
    return _signal(number, handler)
signal.signal = _set
"""


def run(*command: str | Path, cwd: Path = ROOT, check: bool = True, **environment: str) -> int:
    """Run a command with the copy before what is installed."""
    env = {name: value for name, value in os.environ.items() if name not in ("SPARK_HOME", "PYTHONPATH")}
    env |= {"PYTHONSAFEPATH": "1", "PYTHONPATH": str(TREE)} | environment
    env |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    return subprocess.run(list(map(str, command)), cwd=cwd, env=env, check=check).returncode


def compile_copy() -> None:
    """Copy the package, and compile its module and the C tests for gcov."""
    shutil.rmtree(OUT, ignore_errors=True)
    (OUT / "data").mkdir(parents=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z", *COPIED],
        cwd=ROOT,
        check=True,
        stdout=subprocess.PIPE,
    )
    for name in filter(None, listed.stdout.decode().split("\0")):
        (TREE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, TREE / name)
    run(sys.executable, "-m", "cython", "-3", "--line-directives", "timerheap/_native/_core.pyx", cwd=TREE)
    gcov = {"CFLAGS": "--coverage -fprofile-update=atomic", "LDFLAGS": "--coverage", "TIMERHEAP_DEBUG": "1"}
    run(sys.executable, "setup.py", "--quiet", "build_ext", "--inplace", cwd=TREE, **gcov)
    (TREE / "sitecustomize.py").write_text(SITE, encoding="utf-8")
    (OUT / "coveragerc").write_text(CONFIG, encoding="utf-8")


def measure(arguments: list[str]) -> int:
    """Run the tests, and return pytest's exit status."""
    # In one process: workers of pytest-xdist have ended before gcov had written what it has counted.
    programs = ["SANITIZE=--coverage", f"BUILD={OUT}/c", "STEPS=5000"]
    run("make", "--no-print-directory", "-C", TREE / "tests/c", *programs)
    return run(
        *(sys.executable, "-m", "coverage", "run", f"--rcfile={OUT}/coveragerc", "-m", "pytest"),
        *("-p", "no:cacheprovider", "-q", "--ignore=tests/native/test_installed.py", *(arguments or QUICK)),
        check=False,
    )


def native() -> dict[str, Counter[int]]:
    """Return how often each line of C and of Cython's sources has run, as gcov counts it."""
    # gcovr looks for sources from one folder; these were compiled in two, and Cython names its own.
    found: dict[str, Counter[int]] = defaultdict(Counter)
    for data in sorted(OUT.rglob("*.gcda")):
        said = subprocess.run(
            ["gcov", "--json-format", "--stdout", data], check=True, capture_output=True, text=True
        ).stdout
        for report in map(json.loads, said.splitlines()):
            folder = report["current_working_directory"]
            for file in report["files"]:
                path = os.path.relpath(os.path.join(folder, file["file"]), TREE)
                if path.startswith(("csrc/", "timerheap/_native/")) and not path.endswith("_core.c"):
                    for line in file["lines"]:
                        found[path][line["line_number"]] += line["count"]
    return found


def by_file() -> dict[str, tuple[int, int]]:
    """Return of each source file how many of its lines have run, and how many could have."""
    rc = f"--rcfile={OUT}/coveragerc"
    run(sys.executable, "-m", "coverage", "combine", "--quiet", rc)
    run(sys.executable, "-m", "coverage", "json", "--quiet", rc, "-o", OUT / "python.json")
    with open(OUT / "python.txt", "w", encoding="utf-8") as to:
        subprocess.run(
            [sys.executable, "-m", "coverage", "report", rc, "--show-missing", "--skip-covered"],
            cwd=ROOT,
            check=True,
            stdout=to,
        )
    found = {}
    for name, file in json.loads((OUT / "python.json").read_text(encoding="utf-8"))["files"].items():
        lines = file["summary"]
        path = str((ROOT / name).resolve().relative_to(TREE))
        found[path] = lines["covered_lines"], lines["num_statements"]
    with open(OUT / "c.txt", "w", encoding="utf-8") as to:
        for path, lines in sorted(native().items()):
            missing = [str(number) for number, count in sorted(lines.items()) if not count]
            found[path] = len(lines) - len(missing), len(lines)
            to.write(f"{path}: {' '.join(missing)}\n")
    return found


def table(files: dict[str, tuple[int, int]]) -> str:
    """Return what is covered, by folder, as a table of Markdown."""
    folders: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path, (covered, total) in files.items():
        kind = {".py": "Python", ".c": "C", ".h": "C"}.get(Path(path).suffix, "Cython")
        for name in (f"`{Path(path).parent}/`", f"all {kind}"):
            folders[name, kind][0] += covered
            folders[name, kind][1] += total
    rows = ["| | language | lines | run by the tests |", "|---|---|---:|---:|"]
    for (name, kind), (covered, total) in sorted(
        folders.items(), key=lambda row: (row[0][0][0] == "a", row[0])
    ):
        if total:
            rows.append(f"| {name} | {kind} | {total:,} | {covered / total:.1%} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Do it; the exit status is that of the tests."""
    compile_copy()
    status = measure(sys.argv[1:])
    text = table(by_file())
    (OUT / "table.md").write_text(text, encoding="utf-8")
    print(f"\n{text}\nThe lines that no test has run: {OUT}/python.txt, {OUT}/c.txt")
    sys.exit(status)


if __name__ == "__main__":
    main()
