"""Compare the instructions of csrc/ and of the row loop with a base commit; fail on an increase of over 5 %.

$ python bench/instructions.py [base]     # default: the fork point from origin/main, or HEAD~1
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MOST = 1.05  # times the base's instructions
ROOT = Path(__file__).resolve().parent.parent
DRIVER = ROOT / "bench" / "instructions.c"
ROW_DRIVER = ROOT / "bench" / "row_operations.py"
COUNTER = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; }
void end(const char *name) { CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
FLAGS = ["-std=c11", "-O3", "-g0", "-fvisibility=hidden"]  # setup.py's
DUMP = re.compile(r"^desc: Trigger: Client Request: ([^\n]*)$.*^summary: (\d+)", re.MULTILINE | re.DOTALL)


def git(*words: str) -> bytes | None:
    run = subprocess.run(["git", "-C", ROOT, *words], capture_output=True)
    return run.stdout if run.returncode == 0 else None


def commit(name: str) -> str | None:
    found = git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    return found.decode().strip() if found else None


def default_base() -> str | None:
    fork = git("merge-base", "origin/main", "HEAD")
    return fork.decode().strip() if fork and fork.decode().strip() != commit("HEAD") else commit("HEAD~1")


def build(csrc: Path, work: Path, driver: Path = DRIVER) -> Path:
    """Build a driver with csrc/ of this tree or of the base."""
    program = work / "program"
    command = ["gcc", *FLAGS, f"-I{csrc}", driver, *sorted(csrc.glob("*.c")), "-o", program]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return program


def count(program: Path, work: Path) -> dict[str, int]:
    """Return the number of instructions of each operation of csrc/."""
    return dumped(work / "callgrind.out", [], [program])


def dumped(output: Path, options: list[str], command: list[str | Path]) -> dict[str, int]:
    """Run a command under callgrind; return the instructions that it has dumped, by name."""
    callgrind = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={output}"]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    run = [*callgrind, *options, *command]
    subprocess.run(run, check=True, capture_output=True, text=True, env=environment)
    dumps = [DUMP.search(file.read_text()) for file in output.parent.glob(f"{output.name}.*")]
    return {dump[1]: int(dump[2]) for dump in dumps if dump}


def count_rows(tree: Path, driver: Path, work: Path) -> dict[str, int]:
    """Return the number of instructions of each operation of the row loop, with a tree's module."""
    site, counter = work / "site", work / "counter.so"
    if not site.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", f"--target={site}", tree]
        subprocess.run(pip, check=True, capture_output=True, text=True)
    build = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", counter]
    subprocess.run(build, input=COUNTER, check=True, capture_output=True, text=True)
    start = f"""if True:
        import runpy, sys
        sys.path.insert(0, {str(site)!r})
        runpy.run_path({str(driver)!r}, run_name="__main__")
    """
    command = [sys.executable, "-P", "-c", start, counter]
    return dumped(work / "row_loop.out", ["--instr-atstart=no"], command)


def count_base(base: Path) -> dict[str, int]:
    """Count at the base, with its own driver if this tree's calls functions that it lacks."""
    try:
        program = build(base / "csrc", base)
    except subprocess.CalledProcessError:
        program = build(base / "csrc", base, base / DRIVER.relative_to(ROOT))
    return count(program, base) | count_base_rows(base)


def count_base_rows(base: Path) -> dict[str, int]:
    """Count the row loop at the base, with its own driver if need be; nothing if it has none."""
    for driver in (ROW_DRIVER, base / ROW_DRIVER.relative_to(ROOT)):
        try:
            return count_rows(base, driver, base)
        except subprocess.CalledProcessError:
            continue
    return {}


def table(ours: dict[str, int], base: dict[str, int]) -> tuple[str, list[str]]:
    """Return a table of both counts, and the operations that exceed the limit."""
    slower = [name for name in ours if name in base and ours[name] > MOST * base[name]]
    lines = [f"{'instructions':24}{'base':>14}{'here':>14}"]
    for name in sorted(ours):
        if name not in base:
            lines.append(f"{name:24}{'':>14}{ours[name]:14,}      new")
            continue
        mark = "  MORE" if name in slower else ""
        lines.append(f"{name:24}{base[name]:14,}{ours[name]:14,}{ours[name] / base[name] - 1:+9.1%}{mark}")
    return "\n".join(lines), slower


def main(base: str | None = None) -> None:
    for tool in ("valgrind", "gcc", "git"):
        if not shutil.which(tool):
            sys.exit(f"The instruction gate needs {tool} (Debian: apt-get install {tool}).")
    found = commit(base) if base else default_base()
    if found is None:
        sys.exit(f"No commit to compare with: {base or 'HEAD~1'} is not in this clone (is it a shallow one?)")
    with tempfile.TemporaryDirectory(prefix="timerheap-instructions-") as scratch:
        here, there = Path(scratch) / "here", Path(scratch) / "there"
        here.mkdir()
        there.mkdir()
        try:
            ours = count(build(ROOT / "csrc", here), here) | count_rows(ROOT, ROW_DRIVER, here)
        except subprocess.CalledProcessError as error:
            sys.exit(f"The operations cannot be built and run here.\n{error.stderr}")
        archive = git("archive", found)
        if archive is None:
            sys.exit(f"{found[:10]} cannot be read: is this a shallow clone?")
        subprocess.run(["tar", "-x", "-C", there], input=archive, check=True)
        try:
            base_counts = count_base(there)
        except subprocess.CalledProcessError as error:
            print(f"Skipped: {found[:10]} cannot be built and run here.\n{error.stderr}")
            return
    text, slower = table(ours, base_counts)
    print(f"base {found[:10]}\n{text}")
    if slower:
        sys.exit(f"More than {MOST - 1:.0%} more instructions than at {found[:10]}: {', '.join(slower)}")


if __name__ == "__main__":
    main(*sys.argv[1:])
