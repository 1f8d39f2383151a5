"""Run by test_java.py on the packaged Java: RocksDB state and an event-time timer, by Spark's own API."""

import json
import os
import sys
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

from timerheap.spark import ensure_java

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


class CountUntilSilent(StatefulProcessor):
    """Emits a key's number of rows one second of event time after its last row."""

    def init(self, handle):
        self.handle = handle
        self.count = handle.getValueState("count", "n long")

    def handleInputRows(self, key, batches, timerValues):
        (n,) = self.count.get() or (0,)
        for batch in batches:
            n += len(batch)
            last = batch["at"].max()
        self.count.update((n,))
        self.handle.registerTimer(int(last.timestamp() * 1000) + 1000)
        yield from ()

    def handleExpiredTimer(self, key, timerValues, expiredTimerInfo):
        at = expiredTimerInfo.getExpiryTimeInMs()
        yield pd.DataFrame({"key": [key[0]], "n": [self.count.get()[0]], "at": [at]})
        self.count.clear()

    def close(self):
        pass


def main(work: Path) -> None:
    ensure_java()
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .getOrCreate()
    )
    files = work / "in"
    files.mkdir()
    for i, text in enumerate(["a,1\na,2\nb,3\n", "c,60\n"]):
        (files / f"{i}.csv").write_text(text)
        os.utime(files / f"{i}.csv", (i, i))
    rows = spark.readStream.schema("key string, second long").option("maxFilesPerTrigger", 1).csv(str(files))
    counts = (
        rows.select("key", F.timestamp_seconds("second").alias("at"))
        .withWatermark("at", "0 seconds")
        .groupBy("key")
        .transformWithStateInPandas(CountUntilSilent(), "key string, n long, at long", "Append", "EventTime")
    )
    sink = counts.writeStream.format("memory").queryName("counts").trigger(availableNow=True)
    sink.option("checkpointLocation", str(work / "checkpoint")).start().awaitTermination()
    result = {
        "java_home": spark._jvm.java.lang.System.getProperty("java.home"),
        "rows": sorted([row.key, row.n, row.at] for row in spark.table("counts").collect()),
    }
    spark.stop()
    print(json.dumps(result))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
