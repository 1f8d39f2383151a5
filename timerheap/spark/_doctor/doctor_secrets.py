"""What the report of `doctor` must not have."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from timerheap.spark._compat import on_connect
from timerheap.spark._doctor.doctor_software import Finding

_LONGEST = 400  # characters of a text
_SECRET_NAMES = re.compile(
    r"secret|password|passwd|token|credential|(access|account|private|api)[._-]?key", re.I
)
_LOOKS_SECRET = [
    re.compile(r"(?i)\b[\w.\-]*(?:secret|password|passwd|token|credential|[._-]key)[\w.\-]*\s*[=:]\s*\S+"),
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b|\bdapi[0-9a-f]{20,}\b|\beyJ[\w\-]{10,}[\w\-.]*"),
    re.compile(r"(?<=://)[^/\s@]+@"),
    re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b"),  # addresses; versions have three parts
    re.compile(r"(?<![\w/])(?:[a-z][a-z0-9+]*:/{1,3}|/)[^\s'\",;:()<>\[\]]+"),  # paths
]


@dataclass(frozen=True)
class Secrets:
    """Texts that are left out of a report, the longest first."""

    texts: tuple[str, ...]

    @classmethod
    def of(cls, spark: SparkSession, checkpoint: str | None) -> Secrets:
        """Return those of a session and of this process."""
        found = {platform.node(), socket.gethostname(), os.path.expanduser("~"), os.getcwd()}
        found |= {tempfile.gettempdir(), checkpoint or ""}
        with suppress(Exception):
            found.add(getpass.getuser())
        with suppress(Exception):
            given = dict(spark.conf.getAll)
            if not on_connect(spark):
                given |= dict(spark.sparkContext.getConf().getAll())
            found |= {str(value) for name, value in given.items() if _SECRET_NAMES.search(name)}
            found |= {str(given.get(name, "")) for name in ("spark.driver.host", "spark.app.name")}
        told = {text for text in found if len(text) > 3} - {"root", "localhost", "local", "true", "false"}
        return cls(tuple(sorted(told, key=len, reverse=True)))

    def removed_from(self, finding: Finding) -> Finding:
        """Return a finding without them."""
        return replace(finding, found=self._cleaned(finding.found), remedy=finding.remedy)

    def _cleaned(self, text: str) -> str:
        text = " ".join(text.split())
        for secret in self.texts:
            text = text.replace(secret, "***")
        for pattern in _LOOKS_SECRET:
            text = pattern.sub("***", text)
        return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
