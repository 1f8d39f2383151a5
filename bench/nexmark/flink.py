"""Flink SQL on the same files: a mini-cluster in a Java process, without a JDK and without PyFlink.

Needs the PyPI package apache-flink-libraries, which has the jars (330 MB; fetched into a cache), and a Java
runtime. Queries are submitted through py4j, which Spark brings.
"""

from __future__ import annotations

import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyspark
from peers.flink import VERSION, fetch
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
from usage import Meter

from nexmark.generator import AUCTION, BID, PERSON, SCHEMA
from nexmark.streams import AUCTIONS, BIDS, PERSONS
from nexmark.texts import QUERIES
from timerheap._java import find_java

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "timerheap" / f"flink-{VERSION}"

# q12's windows are those of the clock: only their sum can be compared.
COUNTS = "SELECT bidder, COUNT(*) AS bid_count FROM bid GROUP BY bidder"

# What Flink's own scripts pass to Java.
_OPENS = [
    f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "net", "io", "nio", "time", "util")
]
_TYPES = {"int32": "INT", "int64": "BIGINT", "string": "STRING"}

# The published settings, but for what a column says.
SETTINGS = {
    "parallelism.default": "2",
    "table.local-time-zone": "UTC",
}
MINI_BATCH = {
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "2 s",
    "table.exec.mini-batch.size": "50000",
    "table.optimizer.distinct-agg.split.enabled": "true",
}
HEAP = {"state.backend.type": "hashmap"}
ROCKSDB = {
    "state.backend.type": "rocksdb",
    "execution.checkpointing.incremental": "true",
    "taskmanager.memory.managed.size": "2g",  # for its caches, beside the JVM's heap
}
COLUMNS = {
    "heap": HEAP,
    "heap-mini": HEAP | MINI_BATCH,
    "rocksdb": ROCKSDB,
    "rocksdb-mini": ROCKSDB | MINI_BATCH,
}
MINI = {"heap-mini", "rocksdb-mini"}
DEFAULT = "heap-mini"
# A bounded job waits at its end for one more checkpoint, up to the interval, without the second setting.
CHECKPOINTS = {
    "execution.checkpointing.interval": "10 s",
    "execution.checkpointing.checkpoints-after-tasks-finish.enabled": "false",
}


class Run(NamedTuple):
    """What a job has taken."""

    seconds: float  # from its start to its end, as Flink says
    cpu: float  # CPU seconds of the Java process, from its submission, with its compilers
    compilers: float  # the part of the just-in-time compilers
    python: float = 0.0  # there is none
    checkpoints: int = 0


class Flink:
    """The Java process; `heap` is its memory, and `more` are jars beside Flink's own."""

    def __init__(self, heap: str = "4g", log: Path = Path(os.devnull), more: Sequence[Path] = ()) -> None:
        own = fetch(CACHE).parent.glob("*.jar")
        bridge = next((Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar"))
        port, self.process = launch_gateway(
            jarpath=str(bridge),
            classpath=os.pathsep.join(map(str, [*sorted(own), *more])),
            javaopts=[
                *_OPENS,
                *(f"-Xms{heap}", f"-Xmx{heap}", "-XX:+UseG1GC"),
                "-XX:-UseDynamicNumberOfCompilerThreads",  # see usage.compiling
            ],
            java_path=str(find_java() / "bin" / "java"),
            die_on_exit=True,
            return_proc=True,
            redirect_stdout=log.open("a"),
            redirect_stderr=log.open("a"),
        )
        self.gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port))

    def run(self, query: str, directory: Path, into: Path | None = None, column: str = DEFAULT) -> Run:
        """Run a query as a stream, with checkpoints; its rows are dropped, or go to CSV files."""
        with tempfile.TemporaryDirectory() as folder:
            checkpoints, states = Path(folder, "checkpoints"), Path(folder, "states")
            checkpoints.mkdir()
            settings = CHECKPOINTS | {
                "execution.checkpointing.dir": checkpoints.as_uri(),
                "state.backend.rocksdb.localdir": str(states),
            }
            tables = self._tables(directory, "4 SECOND", settings=COLUMNS[column] | settings)
            parts = "PARTITIONED BY (dt, hm)" if query == "q10" else ""
            return self.insert(tables, QUERIES[query], into, parts, watched=Path(folder))

    def plan(self, query: str, directory: Path, column: str = DEFAULT) -> list[str]:
        """Return the names of the operators of a query's plan, from its sink down."""
        tables = self._tables(directory, "4 SECOND", settings=COLUMNS[column])
        text = str(tables.executeSql(f"EXPLAIN {QUERIES[query]}").collect().next().getField(0))
        found = text[text.index("== Optimized Execution Plan ==") :]
        return re.findall(r"^[\s:|+-]*(\w+)\(", found, re.M)

    def results(self, query: str, directory: Path, into: Path) -> None:
        """Write the rows of a query to CSV files, and where it updates rows, only what they are at the end.

        It runs as a batch. Batches have no sessions and no joins by time: q11 and q13 run as streams, whose
        watermark waits for the end so that no row is late, whatever the order of the files.
        """
        tables = self._tables(directory, "30 DAY", batch=query not in ("q11", "q13"))
        parts = "PARTITIONED BY (dt, hm)" if query == "q10" else ""
        self.insert(tables, COUNTS if query == "q12" else QUERIES[query], into, parts)

    def insert(
        self, tables: Any, text: str, into: Path | None, parts: str = "", watched: Path | None = None
    ) -> Run:
        """Run a query of tables; its rows are dropped, or go to CSV files.

        watched: a folder with that of the checkpoints, which are counted while the job runs
        """
        schema = tables.sqlQuery(text).getResolvedSchema().toString()
        columns = re.sub(r"^\(|\)$| NOT NULL|\*ROWTIME\*|\*PROCTIME\*", "", schema.strip())
        sink = files(into) if into else "'connector' = 'blackhole'"
        tables.executeSql(f"CREATE TEMPORARY TABLE sink ({columns}) {parts} WITH ({sink})")
        meter = Meter(self.process.pid)
        result = tables.executeSql(f"INSERT INTO sink {text}").getJobClient().get().getJobExecutionResult()
        done = 0
        while watched and not result.isDone():
            numbers = [int(path.parent.name[4:]) for path in watched.glob("checkpoints/*/chk-*/_metadata")]
            done = max([done, *numbers])
            time.sleep(0.1)
        took = result.get().getNetRuntime()
        used, compiled = meter.read()
        return Run(took / 1000, sum(used), compiled, checkpoints=done)

    def close(self) -> None:
        self.gateway.shutdown()
        self.process.stdin.close()
        self.process.wait()

    def environment(self, batch: bool = False, settings: Mapping[str, str] = COLUMNS[DEFAULT]) -> Any:
        """Return an environment without tables."""
        flink = self.gateway.jvm.org.apache.flink
        wanted = flink.configuration.Configuration()
        for name, value in {**SETTINGS, **settings}.items():
            wanted.setString(name, value)
        builder = flink.table.api.EnvironmentSettings.newInstance().withConfiguration(wanted)
        return flink.table.api.TableEnvironment.create(
            (builder.inBatchMode() if batch else builder.inStreamingMode()).build()
        )

    def _tables(
        self,
        directory: Path,
        delay: str,
        batch: bool = False,
        settings: Mapping[str, str] = COLUMNS[DEFAULT],
    ) -> Any:
        """Return an environment with the published views, over the same columns."""
        tables = self.environment(batch, settings)
        number, unit = delay.split()
        columns = ", ".join(f"`{field.name}` {_TYPES[str(field.type)]}" for field in SCHEMA)
        tables.executeSql(
            f"""CREATE TEMPORARY TABLE events ({columns},
              `dateTime` AS CAST(TO_TIMESTAMP_LTZ(ms, 3) AS TIMESTAMP(3)),
              expires AS CAST(TO_TIMESTAMP_LTZ(expires_ms, 3) AS TIMESTAMP(3)),
              WATERMARK FOR `dateTime` AS `dateTime` - INTERVAL '{number}' {unit}
            ) WITH ({files(directory / "flink", "parquet")})"""
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


def files(path: Path, form: str = "csv") -> str:
    """Return the options of a table of files."""
    return f"'connector' = 'filesystem', 'path' = '{path}', 'format' = '{form}'"
