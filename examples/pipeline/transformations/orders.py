"""The orders as they come, one table of the pipeline."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

spark = SparkSession.active()


@dp.table(schema="id string, customer string, event string, at timestamp")
def orders() -> DataFrame:
    """The events of all orders."""
    incoming = str(spark.conf.get("orders.incoming"))
    return spark.readStream.schema("id string, customer string, event string, at timestamp").json(incoming)
