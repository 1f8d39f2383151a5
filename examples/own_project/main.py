"""Print the parcels that were not scanned for an hour: ``python main.py``, in any folder."""

from pathlib import Path

import parcels
from pyspark.sql import SparkSession

import timerheap.spark

timerheap.spark.ensure_java()
builder = SparkSession.builder.master("local[1]").config(map=timerheap.spark.settings())
spark = builder.config("spark.sql.shuffle.partitions", 1).getOrCreate()
spark.sparkContext.addPyFile(str(Path(parcels.__file__)))  # Python workers import it, too

scans = spark.createDataFrame([(1, 0), (2, 0), (2, 1_800_000)], "parcel int, at long")
unscanned = timerheap.spark.process(
    scans,
    key="parcel",
    function=parcels.Unscanned(),
    output_schema="parcel int, at long",
    event_time="at",
    watermark="1 minute",
)
for row in unscanned.orderBy("at").collect():
    print(row.parcel, row.at)
