"""The file of a benchmark's figures, with what they were measured by, when, where and with which versions."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from timerheap._java import find_java

__all__ = ["about", "write_json"]

_PACKAGES = ("timerheap", "pyspark", "pyarrow", "numpy", "duckdb", "polars")


def write_json(options: argparse.Namespace, figures: object) -> None:
    """Write what is known of a run, and its figures, to the file `options.json`; nothing if that is None.

    The directory is made if there is none. A file may be written again as figures come in.
    """
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"about": about(options), "figures": figures}, indent=1, default=str)
        options.json.write_text(text + "\n")


def about(options: argparse.Namespace) -> dict[str, object]:
    """Return the date, the program with its arguments, the machine with its load, and the versions."""
    models = re.findall(r"^model name\s*: (.*)", Path("/proc/cpuinfo").read_text(), re.M)
    release = Path(find_java(), "release")
    java = re.search(r'JAVA_VERSION="(.*?)"', release.read_text()) if release.exists() else None
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "program": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "arguments": {name: value for name, value in vars(options).items() if name != "json"},
        "machine": f"{len(os.sched_getaffinity(0))} cores of {models[0] if models else os.uname().machine}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.0f} GB",
        "load": round(os.getloadavg()[2], 1),  # of 15 minutes
        "versions": {
            "CPython": sys.version.split()[0],
            **{name: found for name in _PACKAGES if (found := _version(name))},
            **({"Java": java[1]} if java else {}),
        },
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
