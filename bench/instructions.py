"""Compare the instructions of each operation of csrc/ with a base commit; fail on an increase of over 5 %.

$ python bench/instructions.py [base]     # default: the fork point from origin/main, or HEAD~1
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

MOST = 1.05  # times the base's instructions
ROOT = Path(__file__).resolve().parent.parent
DRIVER = ROOT / "bench" / "instructions.c"
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
    """Return the number of instructions of each operation."""
    output = work / "callgrind.out"
    callgrind = ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={output}"]
    subprocess.run([*callgrind, program], check=True, capture_output=True, text=True)
    dumps = [DUMP.search(file.read_text()) for file in work.glob("callgrind.out.*")]
    return {dump[1]: int(dump[2]) for dump in dumps if dump}


def count_base(base: Path) -> dict[str, int]:
    """Count at the base, with its own driver if this tree's calls functions that it lacks."""
    try:
        program = build(base / "csrc", base)
    except subprocess.CalledProcessError:
        program = build(base / "csrc", base, base / DRIVER.relative_to(ROOT))
    return count(program, base)


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
            ours = count(build(ROOT / "csrc", here), here)
        except subprocess.CalledProcessError as error:
            sys.exit(f"{DRIVER.name} cannot be built and run here.\n{error.stderr}")
        archive = git("archive", found, "csrc", "bench")
        if archive is None:
            print(f"Skipped: {found[:10]} has no csrc/ to compare with.")
            return
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
