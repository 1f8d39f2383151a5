"""How long the README's program takes to its first alert, statement by statement.

Run as ``python bench/first_contact.py [--json FILE]`` in an environment with timerheap[spark]; it starts a
JVM of its own.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from figures import write_json

README = Path(__file__).resolve().parent.parent / "README.md"
READINGS = (("a", "12:00:00"), ("b", "12:00:10"), ("a", "12:00:40"), ("a", "12:03:00"))
_LEAST = 0.05  # seconds of a statement that is worth a line


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="where the figures go")
    options = parser.parse_args()
    options.json = options.json and options.json.resolve()  # the program runs in a folder of its own
    steps: list[dict[str, Any]] = []
    begun = last = time.perf_counter()
    block = re.search(r"^```python\n(.*?)^```$", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert block is not None
    *statements, run = ast.parse(block[1]).body
    assert ast.unparse(run).endswith(".awaitTermination()"), "the last statement must run the query"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.chdir(tempfile.mkdtemp(prefix="timerheap-bench-"))
    Path("readings").mkdir()
    rows = [{"sensor": sensor, "at": f"2026-01-01T{at}"} for sensor, at in READINGS]
    Path("readings/1.json").write_text("\n".join(map(json.dumps, rows)))
    called = threading.Event()
    names: dict[str, Any] = {"__name__": "__main__"}

    def took(what: str) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last >= _LEAST:
            steps.append({"what": what, "seconds": now - last})
            print(f"{now - last:7.2f} s  {what}")
        last = now

    for statement in statements:
        exec(compile(ast.Module([statement], []), "README.md", "exec"), names)
        took(f"`{ast.unparse(statement).splitlines()[0][:80]}`")
        if isinstance(statement, ast.FunctionDef):
            report = names[statement.name]
            names[statement.name] = lambda *arguments, report=report: (report(*arguments), called.set())
    query = eval(ast.unparse(run).removesuffix(".awaitTermination()"), names)
    took("`start()`")
    while not called.wait(0.2):
        if query.exception() is not None:
            raise query.exception()
    took("the first micro-batch, to its alerts")
    print(f"{last - begun:7.2f} s  in all")
    while not (progress := query.recentProgress):
        time.sleep(0.1)
    print("of the micro-batch, ms:", progress[0].durationMs)
    query.stop()
    names["spark"].stop()
    write_json(options, {"steps": steps, "seconds": last - begun})


if __name__ == "__main__":
    main()
