"""Jars of Maven's artifacts, with all that they need, fetched once for all environments."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from warnings import catch_warnings
from xml.etree.ElementTree import Element, SubElement, tostring

import pyspark
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.x509 import load_pem_x509_certificates

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
                *(ensure_java() / "bin/java", *trusting(Path(draft, "trusted.p12")), "-jar", ivy),
                *("-ivy", wanted, "-cache", FOLDER / "ivy"),
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


def trusting(store: Path) -> list[str]:
    """Return the options of a Java that trusts whom this machine trusts, by a file that this writes.

    A Java from a Python package has certificates of its own, without those of a company's proxy.
    """
    bundle = ssl.get_default_verify_paths().cafile
    if bundle is None:
        return []
    with catch_warnings(action="ignore"):  # about certificates that are not well made
        certificates = load_pem_x509_certificates(Path(bundle).read_bytes())
    known = {one.public_bytes(Encoding.DER): one for one in certificates}  # each once, as Java wants them
    named = [PKCS12Certificate(one, f"{at}".encode()) for at, one in enumerate(known.values())]
    store.write_bytes(serialize_java_truststore(named, BestAvailableEncryption(b"changeit")))
    options = {"trustStore": store, "trustStorePassword": "changeit", "trustStoreType": "PKCS12"}
    return [f"-Djavax.net.ssl.{name}={value}" for name, value in options.items()]
