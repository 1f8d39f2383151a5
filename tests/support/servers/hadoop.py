"""HDFS and YARN on this machine, from Hadoop's published jars, in the version that pyspark brings."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Self

from jars import PYSPARK, jars

from timerheap.spark import ensure_java

__all__ = ["Hadoop"]

JAVA_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")
BESIDE = ("org.junit.jupiter:junit-jupiter-api:5.13.4", "org.bouncycastle:bcpkix-jdk18on:1.82")
SETTINGS = {
    "yarn.scheduler.capacity.root.queues": "default",
    "yarn.scheduler.capacity.root.default.capacity": "100",
    "yarn.scheduler.capacity.maximum-am-resource-percent": "1",
    "yarn.scheduler.minimum-allocation-mb": "128",
    "dfs.blocksize": "16777216",  # the data node sets aside a block for each file that is open
    # A small machine may run all containers, and its disk may be almost full.
    "yarn.nodemanager.resource.memory-mb": "8192",
    "yarn.nodemanager.vmem-check-enabled": "false",
    "yarn.nodemanager.pmem-check-enabled": "false",
    "yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage": "100",
}


class Hadoop:
    """HDFS with one data node, and YARN with one node manager, in one JVM.

    Parameters
    ----------
    folder : pathlib.Path
        For all their data and logs.

    Attributes
    ----------
    configuration : pathlib.Path
        For ``HADOOP_CONF_DIR``.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.configuration = folder, folder / "conf"
        (client,) = PYSPARK.glob("hadoop-client-api-*.jar")
        version = client.stem.removeprefix("hadoop-client-api-")
        published = jars(f"org.apache.hadoop:hadoop-client-minicluster:{version}", *BESIDE)
        # Spark's jars come first: they have a logger and a compiler of Java.
        self.classpath = os.pathsep.join([f"{PYSPARK}/*", *map(str, published)])

    def _java(self, *arguments: object) -> list[str]:
        java = [ensure_java() / "bin/java", *JAVA_OPTIONS, f"-Djava.io.tmpdir={self.folder}"]
        return [*map(str, (*java, f"-Dtest.build.data={self.folder}/data", *arguments))]

    def __enter__(self) -> Self:
        self.configuration.mkdir(parents=True)
        written = self.configuration / "core-site.xml"
        source = Path(__file__).with_name("MiniHadoop.java")
        program = ("-cp", self.classpath, "org.codehaus.janino.SimpleCompiler", source, "MiniHadoop")
        settings = [f"{name}={value}" for name, value in SETTINGS.items()]
        with (self.folder / "log").open("wb") as log:
            self.process = subprocess.Popen(
                self._java(*program, written, 1, *settings),
                cwd=self.folder,
                env=os.environ | {"JAVA_HOME": str(ensure_java())},  # containers get it
                stdin=subprocess.PIPE,  # it ends with this process
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        until = time.monotonic() + 180
        while not written.exists():
            if self.process.poll() is not None or time.monotonic() > until:
                self.__exit__()
                log_text = (self.folder / "log").read_text(errors="replace")
                raise TimeoutError(f"Hadoop does not start: ...{log_text[-3000:]}")
            time.sleep(0.1)
        (self.configuration / "yarn-site.xml").symlink_to(written)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def files(self, *arguments: object) -> None:
        """Run a command of ``hadoop fs``, such as ``-put``."""
        shell = ("-cp", f"{self.configuration}{os.pathsep}{self.classpath}", "org.apache.hadoop.fs.FsShell")
        subprocess.run(self._java(*shell, *arguments), check=True, capture_output=True)

    def logs(self) -> str:
        """Return the ends of what Hadoop and the containers have written."""
        found = [self.folder / "log", *self.folder.rglob("stderr"), *self.folder.rglob("stdout")]
        return "\n".join(f"{path}: ...{path.read_text(errors='replace')[-3_000:]}" for path in found)
