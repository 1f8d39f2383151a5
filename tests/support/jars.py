"""Jars of Maven's artifacts, with all that they need, fetched once for all environments."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from xml.etree.ElementTree import Element, SubElement, tostring

import pyspark

from timerheap.spark import ensure_java

__all__ = ["Unreachable", "jars"]

FOLDER = Path(sys.prefix).parent / "jars"  # beside the environments
PYSPARK = Path(pyspark.__file__).parent / "jars"


class Unreachable(RuntimeError):
    """An artifact could not be fetched."""


@cache
def jars(*artifacts: str, beside_spark: bool = True, without: tuple[str, ...] = ()) -> tuple[Path, ...]:
    """Return the jars of `artifacts`, each ``group:name:version``, and of all that they need.

    Parameters
    ----------
    *artifacts : str
        Maven's coordinates. These versions are taken, also where one needs a different version of the other.
    beside_spark : bool, default True
        Leave out the modules that pyspark brings, in whatever version.
    without : tuple of str
        Names of further modules to leave out.

    Raises
    ------
    Unreachable
        If one cannot be fetched: it names each. Is raised again, without a new try, in the same process.
    """
    left_out = sorted({*without, *(modules_of(PYSPARK) if beside_spark else ())})
    name = hashlib.sha256(repr((sorted(artifacts), left_out)).encode()).hexdigest()[:16]
    folder = FOLDER / name
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            if failure := failures.get(name):
                raise failure
            try:
                fetch(artifacts, left_out, folder)
            except Unreachable as error:
                failures[name] = error
                raise
    return tuple(sorted(folder.glob("*.jar")))


failures: dict[str, Unreachable] = {}


def modules_of(folder: Path) -> list[str]:
    """Return the names of the modules whose jars are in a folder."""
    return [re.sub(r"-\d.*", "", path.stem) for path in folder.glob("*.jar")]


def fetch(artifacts: Sequence[str], left_out: Sequence[str], folder: Path) -> None:
    """Fill a folder, whole or not at all, by the Ivy that Spark fetches packages with."""
    module = Element("ivy-module", version="2.0")
    SubElement(module, "info", organisation="timerheap", module="tests")
    dependencies = SubElement(module, "dependencies")
    for artifact in artifacts:
        group, name, version = artifact.split(":")
        SubElement(dependencies, "dependency", org=group, name=name, rev=version, conf="default")
    for name in left_out:
        SubElement(dependencies, "exclude", org="*", module=name)
    for artifact in artifacts:
        group, name, version = artifact.split(":")
        SubElement(dependencies, "override", org=group, module=name, rev=version)
    (ivy,) = PYSPARK.glob("ivy-*.jar")
    with tempfile.TemporaryDirectory(dir=FOLDER) as draft:
        wanted = Path(draft, "ivy.xml")
        wanted.write_bytes(tostring(module))
        pattern = f"{draft}/jars/[artifact]-[revision](-[classifier]).[ext]"
        run = subprocess.run(
            [
                *(ensure_java() / "bin/java", "-jar", ivy, "-ivy", wanted, "-cache", FOLDER / "ivy"),
                *("-confs", "default", "-types", "jar", "bundle", "-retrieve", pattern),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if run.returncode or not Path(draft, "jars").exists():
            missing = re.findall(r":: ([\w.-]+#[\w.-]+;[\w.-]+): ", run.stdout + run.stderr)
            what = ", ".join(dict.fromkeys(missing)) or (run.stdout + run.stderr)[-500:]
            raise Unreachable(f"could not fetch {', '.join(artifacts)}: {what}")
        os.replace(Path(draft, "jars"), folder)
