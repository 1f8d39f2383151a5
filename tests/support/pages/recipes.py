"""The commands of docs/operations/deployment.md, run as they stand there, but for hosts and paths."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyspark
import pytest
from local_spark import JAVA_OPTIONS

from timerheap.spark import ensure_java

__all__ = ["ROOT", "SPARK", "blocks", "pack", "run"]

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/operations/deployment.md"
SPARK = Path(pyspark.__file__).parent


def blocks(heading: str, language: str) -> list[str]:
    """Return the blocks of a language in a section of the page."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    found = re.findall(rf"^```{language}\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found, f"no block of {language} below {heading}"
    return found


def pack(folder: Path) -> None:
    """Pack an environment in `folder`, with the wheel in dist/, as the page says.

    The folder has then an executor's ``environment.tar.gz``, and the job with its modules.
    """
    tag = "cp{}{}".format(*sys.version_info[:2])
    wheels = list((ROOT / "dist").glob(f"timerheap-*-{tag}-*.whl"))
    if not wheels:
        pytest.skip("there is no wheel for this Python in dist/: make dist")
    (folder / "dist").mkdir(parents=True)
    for wheel in wheels:
        shutil.copy(wheel, folder / "dist")
    for module in ("examples/flights.py", "examples/overdue.py"):
        shutil.copy(ROOT / module, folder)
    shutil.copy(ROOT / "tests/support/programs/flights_on_executors.py", folder / "job.py")
    (block,) = blocks("Pack an environment", "sh")
    run(block.replace("python3.11", sys._base_executable).replace("cp311", tag), folder)


def run(block: str, folder: Path, settings: Mapping[str, object] | None = None, **variables: object) -> str:
    """Run a block in `folder`, with settings of Spark and variables that the page leaves to the reader."""
    home = folder / "spark-conf"
    home.mkdir(exist_ok=True)
    lines = [f"{name} {value}" for name, value in (settings or {}).items()]
    (home / "spark-defaults.conf").write_text("\n".join(lines))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PY", "SPARK_"))}
    environment = kept | {
        "JAVA_HOME": str(ensure_java()),
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "PYTHONSAFEPATH": "1",
        "SPARK_HOME": str(SPARK),
        "SPARK_CONF_DIR": str(home),
        "PATH": f"{SPARK / 'bin'}{os.pathsep}{os.environ['PATH']}",
    }
    environment |= {name: str(value) for name, value in variables.items()}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-e", "-c", block],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            process.wait(600)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    text = (folder / "log").read_text(errors="replace")
    assert process.returncode == 0, f"{block}\n...{text[-6_000:]}"
    return text
