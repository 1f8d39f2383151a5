"""`append_kafka`: the rows of a query in a topic of Kafka, each once.

A task writes its rows and the number of its micro-batch in one transaction of Kafka. Its transactional id
has the id of the query and the number of the partition, so of two tasks that write the same rows only the
later one can commit. The number is kept as the committed offset of a consumer group of the same name; no
consumer is in it. A task that is repeated finds the number, and writes nothing. It reads its rows all the
same, and compares them with what was noted of those: if they are different, rows would be lost, and the query
ends with an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from timerheap._arguments import instance
from timerheap.errors import ArgumentTypeError, ArgumentValueError, CheckpointError, UnsupportedError
from timerheap.spark._compat import refuse_connect

if TYPE_CHECKING:
    from confluent_kafka import Producer

_COLUMNS = {"key": ("string", "binary"), "value": ("string", "binary"), "partition": ("int",)}
_OWN = ("bootstrap.servers", "transactional.id", "group.id", "enable.idempotence", "isolation.level")
_DEFAULTS = {
    "partitioner": "murmur2_random",  # which producers in Java have
    "transaction.timeout.ms": 900_000,  # the longest that a broker allows by default
    "linger.ms": 20,
    "log_level": 2,  # errors are raised
}
_PATIENCE = 120.0  # seconds to wait for a broker
_ANY = -1  # the partition that the key says
_QUERY_ID = "sql.streaming.queryId"


def append_kafka(
    servers: str, topic: str, *, options: Mapping[str, Any] | None = None
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``foreachBatch`` that writes each row of a query to a Kafka topic once.

    Spark's own sink writes rows again after a failure. This one writes them in transactions: a consumer that
    reads committed messages (``isolation.level=read_committed``, the default of librdkafka and not of Java's
    client) sees each row once.

    Parameters
    ----------
    servers : str
        ``bootstrap.servers``, such as ``"broker:9092"``.
    topic : str
        It must exist.
    options : mapping, optional
        Further settings of librdkafka, such as ``{"security.protocol": "SSL"}`` or
        ``{"compression.type": "lz4"}``.

    Returns
    -------
    function
        ``writeStream.foreachBatch(append_kafka(...))``. It may be called in a function of your own. The rows
        have columns of Spark's sink: ``value``, and if wanted ``key``, each a string or binary, and
        ``partition``, an int.

    Raises
    ------
    ArgumentError
        If an argument is wrong; from the function, if the rows have other columns.
    CheckpointError
        From the function, if a micro-batch that was written has different rows when it is repeated; or if a
        later one was written, as when a query begins with an older copy of its checkpoint.
    UnsupportedError
        From the function, on Spark Connect, or outside of a streaming query.
    ImportError
        If confluent-kafka is missing: it is the extra ``kafka``, and must be on the executors.

    Notes
    -----
    A partition of the result must have the same rows when a micro-batch is repeated: the results of timerheap
    and of Spark's stateful operators have, also with ``select`` and ``where`` behind them, and the rows of a
    source. Behind ``repartition(n)`` they may not, which is noticed.

    Each partition of the result has one transaction in a micro-batch, if it has rows, and messages are in
    the order of these. A reader may see those of some partitions before those of others. The transactional
    ids and consumer groups are called ``timerheap-<id of the query>-<partition>``; a user with ACLs needs
    rights on this prefix. Brokers forget a group a week after its last micro-batch
    (``offsets.retention.minutes``): one that was interrupted longer ago is written again.

    Examples
    --------
    ::

        value = F.to_json(F.struct("*")).alias("value")
        messages = alerts.select(F.col("user").alias("key"), value)
        write = timerheap.spark.append_kafka("broker:9092", "alerts")
        query = messages.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint).start()
    """
    given = dict(options or {})
    for name in given:
        if name in _OWN:
            raise ArgumentValueError(
                f"options must not have {name!r}, which append_kafka() sets, got {given[name]!r}; leave it "
                "out"
            )
    settings = {**_DEFAULTS, **given, "bootstrap.servers": instance("servers", servers, str)}
    return KafkaAppender(settings, instance("topic", topic, str))


@dataclass(frozen=True)
class KafkaAppender:
    """A function that writes the rows of each micro-batch to a topic.

    settings: of librdkafka
    """

    settings: dict[str, Any]
    topic: str

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Write the rows of a micro-batch."""
        spark = batch.sparkSession
        refuse_connect(spark, "append_kafka()")
        query = spark.sparkContext.getLocalProperty(_QUERY_ID)
        if query is None:
            raise UnsupportedError(
                "append_kafka() must be called in foreachBatch of a streaming query, by whose id and "
                "micro-batches it knows what was written; write other rows with format('kafka')"
            )
        writer = _PartitionWriter(self.settings, self.topic, f"timerheap-{query}", batch_id)
        messages = batch.select(*_message_columns(batch))
        messages.mapInArrow(writer, "rows long").write.format("noop").mode("overwrite").save()


def _message_columns(batch: DataFrame) -> list[Any]:
    """Return the columns of the messages, checked."""
    types = {field.name: field.dataType for field in batch.schema}
    unknown = sorted(types.keys() - _COLUMNS.keys())
    if unknown or "value" not in types:
        raise ArgumentValueError(
            "the micro-batch must have the columns key, value and partition, or some of them with value, "
            f"got {list(types)}; select them: F.to_json(F.struct('*')).alias('value')"
        )
    for name, type_ in types.items():
        shown = "string" if isinstance(type_, T.StringType) else type_.simpleString()
        if shown not in _COLUMNS[name]:
            raise ArgumentTypeError(
                f"{name} must be of type {' or '.join(_COLUMNS[name])}, got {shown}; cast it, or use "
                "F.to_json"
            )
    none = {"key": F.lit(None).cast("binary"), "partition": F.lit(None).cast("int")}
    found = {name: F.col(name) if name in types else none[name] for name in _COLUMNS}
    return [column.cast("binary") if name != "partition" else column for name, column in found.items()]


@dataclass(frozen=True)
class _PartitionWriter:
    """Writes the rows of one partition of a micro-batch in a task (``mapInArrow``)."""

    settings: dict[str, Any]
    topic: str
    prefix: str
    batch_id: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        task = TaskContext.get()
        assert task is not None
        rows = (batch for batch in batches if batch.num_rows)
        first = next(rows, None)
        if first is None:
            return
        name = f"{self.prefix}-{task.partitionId()}"
        with closing(_Transaction(self.settings, self.topic, name, self.batch_id)) as transaction:
            for batch in chain([first], rows):
                transaction.add(batch)
            transaction.commit()
        yield pa.RecordBatch.from_arrays([pa.array([transaction.rows])], names=["rows"])


class _Transaction:
    """The transaction of a partition and a micro-batch.

    If it was committed before, its rows are only compared with those of that time.
    """

    def __init__(self, settings: dict[str, Any], topic: str, name: str, batch_id: int) -> None:
        try:
            from confluent_kafka import Consumer, Producer, TopicPartition
        except ImportError as error:
            raise ImportError(
                "append_kafka() needs confluent-kafka on the executors; run pip install 'timerheap[kafka]'"
            ) from error
        self._topic, self._batch_id, self.rows, self._sum = topic, batch_id, 0, 0
        self._failed: Any = None
        self._producer: Producer = Producer({**settings, "transactional.id": name})
        self._producer.init_transactions(_PATIENCE)  # from now on no earlier task can commit
        self._group = Consumer({**settings, "group.id": name, "enable.auto.commit": False})
        self._place = TopicPartition
        (found,) = self._group.committed([TopicPartition(topic, 0)], _PATIENCE)
        if found.error is not None:
            raise OSError(f"cannot tell what was written to topic {topic!r}: {found.error.str()}")
        self._written = found.metadata if found.offset > batch_id else None
        if found.offset > batch_id + 1:
            raise CheckpointError(
                f"the checkpoint must be the last one of its query, got micro-batch {batch_id}, and topic "
                f"{topic!r} has micro-batch {found.offset - 1} of it: it is an older copy; start the query "
                "on a new checkpoint"
            )
        self._is_open = self._written is None
        if self._is_open:
            self._producer.begin_transaction()

    def add(self, batch: pa.RecordBatch) -> None:
        """Write rows."""
        self.rows += batch.num_rows
        for key, value, partition in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            # The order of rows may be different in a repetition, so it does not count.
            self._sum += zlib.crc32(value or b"", zlib.crc32(key or b""))
            if self._written is None:
                self._produce(value, key, _ANY if partition is None else partition)
        self._producer.poll(0)

    def _produce(self, value: bytes | None, key: bytes | None, partition: int) -> None:
        while True:
            try:
                self._producer.produce(self._topic, value, key, partition, self._delivered)
            except BufferError:  # its queue is full
                self._producer.poll(0.1)
            else:
                return

    def _delivered(self, error: Any, message: Any) -> None:
        self._failed = self._failed or error

    def commit(self) -> None:
        """Commit the rows with the number of the micro-batch, or compare them."""
        noted = f"{self.rows} {self._sum:x}"
        if self._written is None:
            place = self._place(self._topic, 0, self._batch_id + 1, noted)
            group = self._group.consumer_group_metadata()
            self._producer.flush(_PATIENCE)
            if self._failed is not None:
                raise OSError(f"a row was not written to topic {self._topic!r}: {self._failed.str()}")
            self._producer.send_offsets_to_transaction([place], group, _PATIENCE)
            self._producer.commit_transaction(_PATIENCE)
            self._is_open = False
        elif self._written != noted:
            raise CheckpointError(
                f"micro-batch {self._batch_id} must have the rows with which it was written to topic "
                f"{self._topic!r}, got {self.rows} rows that are not the {self._written.split()[0]} of that "
                "time; compute rows from their input alone, without repartition()"
            )

    def close(self) -> None:
        """Abort what was not committed, so that readers need not wait for what is behind it."""
        if self._is_open:
            with suppress(Exception):  # the next task of this partition does it
                self._producer.abort_transaction(_PATIENCE)
        self._group.close()
