"""What functions for ``foreachBatch`` do alike: each micro-batch becomes final images, which a table takes.

A row is new if nothing of its key has gone in the micro-batch. If its key is in the table all the same, it is
that of a different row, and the key is not unique, unless the micro-batch is a repetition: then the row in
the table is the same. Only the first micro-batch of a start can be one.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pyspark.sql import DataFrame

from timerheap.errors import ArgumentValueError
from timerheap.spark._columns import HIDDEN
from timerheap.spark._sinks.sink_keys import SinkKey
from timerheap.spark._sinks.upserts_of import checked_changes, final_images

DELETED, IS_NEW = f"{HIDDEN}deleted", f"{HIDDEN}is_new"
"""The flags of an image: that its key has no row any more, and that it had none before."""

RAISED = re.compile(
    r"(?:\[USER_RAISED_EXCEPTION\]|PSQLException: ERROR:) "
    r"((?:_change_type|key|staging) .*?)(?: SQLSTATE|\n|$)"
)


def not_unique(key: Sequence[str], table: str) -> tuple[str, str]:
    """Return what an error says before and after the key of which there is a second row."""
    return (
        f"key must be unique in the result, got {list(key)}, by which a new row has the key of a different "
        f"row in table {table}, ",
        "; choose a key that the result guarantees. If the table had rows before the query began, empty it; "
        "if the changes lack preimages, or rows are to be replaced, pass trust_key=True",
    )


def lacking_columns(table: str, columns: Sequence[str], missing: Sequence[str]) -> ArgumentValueError:
    """Return the error for a table without some columns of the result."""
    return ArgumentValueError(
        f"table must have the columns of the result, got {table!r} without {missing}, with {list(columns)}; "
        "add them to the table, or leave them out of the result"
    )


@contextmanager
def raised_by_name() -> Iterator[None]:
    """Raise what tasks have found wrong with a key as an ArgumentValueError, without the JVM's frames."""
    try:
        yield
    except Exception as error:  # of Spark, of Py4J or of gRPC
        found = RAISED.search(str(error))
        if found is None:
            raise
        raise ArgumentValueError(found[1]) from None


class TableWriter(ABC):
    """A function for ``foreachBatch`` that keeps a table up to date.

    Parameters
    ----------
    table : str
    key : SinkKey
    """

    def __init__(self, table: str, key: SinkKey) -> None:
        self.table, self.key = table, key
        self._begun: int | None = None

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        """Apply the changes of a micro-batch."""
        may_be_repeated = self._begun != batch_id - 1
        self._begun = batch_id
        with raised_by_name():
            images = final_images(checked_changes("the micro-batch", batch), self.key.names, DELETED, IS_NEW)
            images = images.persist()  # it is read more than once, and all of it, as Spark's state wants it
            try:
                if count := images.count():
                    self.write(images, count, may_be_repeated)
            finally:
                images.unpersist()

    @abstractmethod
    def write(self, images: DataFrame, count: int, may_be_repeated: bool) -> None:
        """Write rows with distinct keys, `count` of them, and the flags `DELETED` and `IS_NEW`.

        Unless the key is sure, raise an error if a key of a new row is in the table, and write nothing; in a
        repetition only if the rows differ.
        """
