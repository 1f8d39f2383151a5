"""Flink SQL on the same files: a mini-cluster in a Java process, without a JDK and without PyFlink.

Needs the PyPI package apache-flink-libraries, which has the jars (330 MB; fetched into a cache), and a Java
runtime. Queries are submitted through py4j, which Spark brings.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from peers.flink import VERSION, fetch
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from nexmark.generator import AUCTION, BID, PERSON, SCHEMA
from nexmark.streams import AUCTIONS, BIDS, PERSONS
from timerheap._java import find_java

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "timerheap" / f"flink-{VERSION}"
QUERIES = dict(
    re.findall(r"^-- (q\d+)\b[^\n]*\n(.*?);$", Path(__file__).with_name("flink.sql").read_text(), re.M | re.S)
)

# q12's windows are those of the clock: only their sum can be compared.
COUNTS = "SELECT bidder, COUNT(*) AS bid_count FROM bid GROUP BY bidder"

# What Flink's own scripts pass to Java.
_OPENS = [
    f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "net", "io", "nio", "time", "util")
]
_TYPES = {"int32": "INT", "int64": "BIGINT", "string": "STRING"}

# The published settings, but for the state backend: state is on the heap, Flink's default and its fastest.
SETTINGS = {
    "parallelism.default": "2",
    "table.local-time-zone": "UTC",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
}


class Run(NamedTuple):
    """What a job has taken."""

    seconds: float  # from its start to its end, as Flink says
    cpu: float  # CPU seconds of the Java process, from its submission
    python: float = 0.0  # there is none


class Flink:
    """The Java process; `heap` is its memory."""

    def __init__(self, heap: str = "4g", log: Path = Path(os.devnull)) -> None:
        jars = fetch(CACHE).parent.glob("*.jar")
        bridge = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
        port, self.process = launch_gateway(
            jarpath=str(bridge),
            classpath=os.pathsep.join(map(str, sorted(jars))),
            javaopts=[*_OPENS, f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC"],
            java_path=str(find_java() / "bin" / "java"),
            die_on_exit=True,
            return_proc=True,
            redirect_stdout=log.open("a"),
            redirect_stderr=log.open("a"),
        )
        self.gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))

    def run(self, query: str, directory: Path, into: Path | None = None) -> Run:
        """Run a query as a stream; its rows are dropped, as in the published runs, or go to CSV files."""
        parts = "PARTITIONED BY (dt, hm)" if query == "q10" else ""
        return self.insert(self._tables(directory, "4 SECOND"), QUERIES[query], into, parts)

    def results(self, query: str, directory: Path, into: Path) -> None:
        """Write the rows of a query to CSV files, and where it updates rows, only what they are at the end.

        It runs as a batch. Batches have no sessions and no joins by time: q11 and q13 run as streams, whose
        watermark waits for the end so that no row is late, whatever the order of the files.
        """
        tables = self._tables(directory, "30 DAY", batch=query not in ("q11", "q13"))
        parts = "PARTITIONED BY (dt, hm)" if query == "q10" else ""
        self.insert(tables, COUNTS if query == "q12" else QUERIES[query], into, parts)

    def insert(self, tables: Any, text: str, into: Path | None, parts: str = "") -> Run:
        """Run a query of tables; its rows are dropped, or go to CSV files."""
        schema = tables.sqlQuery(text).getResolvedSchema().toString()
        columns = re.sub(r"^\(|\)$| NOT NULL|\*ROWTIME\*|\*PROCTIME\*", "", schema.strip())
        sink = files(into) if into else "'connector' = 'blackhole'"
        tables.executeSql(f"CREATE TEMPORARY TABLE sink ({columns}) {parts} WITH ({sink})")
        before = self._cpu()
        started = tables.executeSql(f"INSERT INTO sink {text}")
        took = started.getJobClient().get().getJobExecutionResult().get().getNetRuntime()
        return Run(took / 1000, self._cpu() - before)

    def close(self) -> None:
        self.gateway.shutdown()
        self.process.stdin.close()
        self.process.wait()

    def environment(self, batch: bool = False) -> Any:
        """Return an environment without tables."""
        api = self.gateway.jvm.org.apache.flink.table.api
        settings = api.EnvironmentSettings.newInstance()
        tables = api.TableEnvironment.create(
            (settings.inBatchMode() if batch else settings.inStreamingMode()).build()
        )
        for name, value in SETTINGS.items():
            tables.getConfig().set(name, value)
        return tables

    def _tables(self, directory: Path, delay: str, batch: bool = False) -> Any:
        """Return an environment with the published views, over the same columns."""
        tables = self.environment(batch)
        number, unit = delay.split()
        columns = ", ".join(f"`{field.name}` {_TYPES[str(field.type)]}" for field in SCHEMA)
        tables.executeSql(
            f"""CREATE TEMPORARY TABLE events ({columns},
              `dateTime` AS CAST(TO_TIMESTAMP_LTZ(ms, 3) AS TIMESTAMP(3)),
              expires AS CAST(TO_TIMESTAMP_LTZ(expires_ms, 3) AS TIMESTAMP(3)),
              WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '{number}' {unit}
            ) WITH ({files(directory / "flink")}, 'csv.null-literal' = '')"""
        )
        views = {"person": (PERSON, PERSONS), "auction": (AUCTION, AUCTIONS), "bid": (BID, BIDS)}
        for name, (kind, names) in views.items():
            listed = ", ".join(f"`{column}`" for column in names)
            tables.executeSql(
                f"CREATE TEMPORARY VIEW {name} AS SELECT {listed} FROM events WHERE event_type = {kind}"
            )
        tables.executeSql("CREATE TEMPORARY VIEW bid_now AS SELECT *, PROCTIME() AS p_time FROM bid")
        tables.executeSql(
            f"""CREATE TEMPORARY TABLE side_input (key BIGINT, `value` STRING, `since` TIMESTAMP(3),
              PRIMARY KEY (key) NOT ENFORCED, WATERMARK FOR `since` AS `since`
            ) WITH ({files(directory / "side_input.csv")})"""
        )
        return tables

    def _cpu(self) -> float:
        words = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, words[11:13])) / os.sysconf("SC_CLK_TCK")


def files(path: Path) -> str:
    """Return the options of a table of CSV files."""
    return f"'connector' = 'filesystem', 'path' = '{path}', 'format' = 'csv'"
