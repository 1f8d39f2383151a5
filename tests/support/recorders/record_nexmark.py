r"""Record what Flink answers to Nexmark's queries on the events of tests/spark/sql/test_nexmark.py.

    PYTHONPATH=bench:examples:$(echo tests/support/* | tr ' ' :) \
        python tests/support/recorders/record_nexmark.py

Needs apache-flink-libraries, which it fetches. Spark reads Flink's rows, with the types of its own.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from flights import spark_session
from nexmark import compare, streams
from nexmark import spark as on_spark
from nexmark.flink import VERSION, Flink
from nexmark.parquet import parquet_jars
from nexmark.texts import QUERIES

FILE = Path(__file__).parents[2] / "spark" / "data" / "nexmark.json"


def main() -> None:
    queries = {}
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        compare.write_small(directory)
        flink = Flink("2g", more=parquet_jars())
        with spark_session(directory / "spark.log", on_spark.SETTINGS) as spark:
            events = streams.events(spark, directory / "spark", batch=True)
            for name in QUERIES:
                if name != "q12":
                    like = on_spark.QUERIES[name](events).drop("auctions")
                    flink.results(name, directory, directory / name)
                    queries[name] = compare.recorded(name, compare.flink_rows(spark, directory / name, like))
                    print(name, queries[name]["count"], flush=True)
        flink.close()
    command = "python tests/support/recorders/record_nexmark.py"
    FILE.write_text(json.dumps({"flink": VERSION, "command": command, "queries": queries}, indent=1) + "\n")


if __name__ == "__main__":
    main()
