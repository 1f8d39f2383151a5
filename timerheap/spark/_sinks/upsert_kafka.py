"""`upsert_kafka`: a compacted topic that has the newest row of each key."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from timerheap._arguments import instance
from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import HIDDEN
from timerheap.spark._plan.named_columns import quoted
from timerheap.spark._sinks.sink_keys import sink_key
from timerheap.spark._sinks.table_writes import raised_by_name
from timerheap.spark._sinks.upserts_of import as_json, checked_changes, final_images

_DELETED = f"{HIDDEN}deleted"


def upsert_kafka(
    servers: str,
    topic: str,
    key: str | Sequence[str] | None = None,
    *,
    of: DataFrame | None = None,
    trust_key: bool = False,
    options: Mapping[str, str] | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes each key's newest row to a Kafka topic.

    For a topic with ``cleanup.policy=compact``: the last message of a key is its row, or null if it has none
    any more. A micro-batch that is repeated writes the same messages again, so the last ones stay the same.

    Parameters
    ----------
    servers : str
        ``kafka.bootstrap.servers``, such as ``"broker:9092"``.
    topic : str
    key : str or list of str, optional
        The columns by which the result has at most one row; by default those that `of` guarantees.
    of : pyspark.sql.DataFrame, optional
        The result whose changes are written. If it knows its keys, one of them must be in `key`, or this
        raises an error.
    trust_key : bool, default False
        Whether `key` is unique for certain. A topic cannot be asked for the row that a key has, so this must
        be True unless the keys of `of` are known.
    options : mapping of str to str, optional
        Further options of Spark's Kafka sink, such as ``{"kafka.security.protocol": "SSL"}``.

    Returns
    -------
    function
        ``writeStream.foreachBatch(upsert_kafka(...))``; on Spark Connect, too. It may be called in a function
        of your own.

    Raises
    ------
    ArgumentError
        If an argument is wrong, or nothing says that the key is unique; from the function, if two rows of a
        micro-batch have the same key.

    Notes
    -----
    Message keys and values are JSON objects: the key columns, and all columns. Nulls are written as null, and
    timestamps in UTC with microseconds, so that a key has the same bytes in every session.

    A key is in one partition, and has one message in a micro-batch. A task that outlives its driver may still
    send messages of a micro-batch that is repeated meanwhile, for as long as it is not told to end.

    Examples
    --------
    ::

        write = timerheap.spark.upsert_kafka("broker:9092", "balances", of=balances)
        query = balances.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
    """
    found = sink_key(key, of, trust_key)
    if not found.is_sure:
        raise ArgumentValueError(
            f"trust_key must be True, got False, and nothing says that {found.names} is unique, which "
            "a topic cannot be asked; pass the result as `of`, or trust_key=True if you know it"
        )
    own = {
        "kafka.bootstrap.servers": instance("servers", servers, str),
        "topic": instance("topic", topic, str),
    }
    return KafkaWriter(found.names, {**(options or {}), **own})


class KafkaWriter:
    """A function that writes the final images of each micro-batch to a topic."""

    def __init__(self, key: list[str], options: dict[str, str]) -> None:
        self._key, self._options = key, options

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write the changes of a micro-batch."""
        with raised_by_name():
            images = final_images(checked_changes("the micro-batch", batch), self._key, _DELETED)
            row = as_json(quoted(name) for name in images.columns if name != _DELETED)
            messages = images.select(
                as_json(map(quoted, self._key)).alias("key"), F.when(~F.col(_DELETED), row).alias("value")
            )
            messages.write.format("kafka").options(**self._options).save()
