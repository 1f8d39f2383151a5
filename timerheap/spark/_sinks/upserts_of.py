"""`upserts_of`: the changes of a micro-batch as one row for each key, which a MERGE takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._changes.change_rows import is_changelog, weighted
from timerheap.spark._columns import CHANGE_TYPE, HIDDEN, WEIGHT
from timerheap.spark._compat import with_columns
from timerheap.spark._plan.named_columns import data_frame, key_columns, quoted

_KEPT, _GONE, _NEW, _OLD = (f"{HIDDEN}{name}" for name in ("kept", "gone", "new", "old"))
_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def upserts_of(changes: DataFrame, key: str | Sequence[str], deleted: str = "_deleted") -> DataFrame:
    """Return what the changes of a micro-batch come to: one row for each key, with a flag.

    For a function of ``foreachBatch`` that writes to a table by key, where `merge_into`, `upsert_jdbc` and
    `upsert_kafka` do not serve. The rows are final images, so that writing them again changes nothing.

    Parameters
    ----------
    changes : pyspark.sql.DataFrame
        A batch DataFrame with the column ``_change_type``, such as that which ``foreachBatch`` passes.
        Columns that a change feed adds, ``_commit_version`` and ``_commit_timestamp``, are left out.
    key : str or list of str
        The columns by which the result has at most one row. Null is a key, and equal to null.
    deleted : str, default "_deleted"
        The name of the flag.

    Returns
    -------
    pyspark.sql.DataFrame
        The columns of `changes` without ``_change_type``, and `deleted`, a boolean. False: the row is the
        one of its key after the micro-batch. True: the key has no row any more; the other columns are those
        of a removed row. A key is missing if its rows cancel each other.

    Raises
    ------
    ArgumentError
        If an argument is wrong: `changes` is a stream or has no ``_change_type``, or a column is missing.
    pyspark.errors.PySparkException
        When the rows are computed, if ``_change_type`` has an unknown word, or if two rows of one key remain,
        which the message shows: the result is not unique by this key.

    Notes
    -----
    Equal rows are first netted, then those of each key: one shuffle, by key. So a change feed may have
    several versions of a row in a micro-batch.

    Examples
    --------
    >>> from timerheap.spark import upserts_of
    >>> def write(batch, batch_id):
    ...     new = upserts_of(batch, "customer")
    ...     new.where("NOT _deleted").write.mode("append").parquet("/data/seen")
    """
    checked_changes("changes", data_frame("changes", changes))
    if changes.isStreaming:
        raise ArgumentValueError(
            "changes must be a batch DataFrame, got a stream; pass the one that foreachBatch passes"
        )
    if not isinstance(deleted, str):
        raise ArgumentTypeError(f"deleted must be a str, got {deleted!r}")
    if deleted in changes.columns:
        raise ArgumentValueError(
            f"deleted must be a new name, got {deleted!r}, which is a column of changes; pass a different one"
        )
    return final_images(changes, key, deleted)


def checked_changes(argument: str, changes: DataFrame) -> DataFrame:
    """Return rows that have change types, without which nothing says what is deleted."""
    if not is_changelog(changes):
        raise ArgumentValueError(
            f"{argument} must have the column {CHANGE_TYPE!r}, got columns {changes.columns}; keep it in "
            "select()"
        )
    return changes


def final_images(
    changes: DataFrame, key: str | Sequence[str], deleted: str, is_new: str | None = None
) -> DataFrame:
    """Return the last row of each key of a batch DataFrame with change types, as `upserts_of` does.

    is_new: the name of a further flag, of rows whose key had no row before the micro-batch
    """
    key = key_columns(changes.drop(CHANGE_TYPE), "key", key)
    rows = weighted("changes", changes)
    names = [name for name in rows.columns if name != WEIGHT]
    others = [name for name in names if name not in key]
    weight = F.col(WEIGHT)
    # In one shuffle, that by key, which brings equal rows together, too.
    equal = rows.repartition(*map(quoted, key)).groupBy(*map(quoted, names))
    netted = equal.agg(F.sum(WEIGHT).alias(WEIGHT)).where(weight != 0)
    image = F.struct(*map(quoted, others or key[:1]))
    found = netted.groupBy(*map(quoted, key)).agg(
        F.sum(F.greatest(weight, F.lit(0))).alias(_KEPT),
        F.sum(F.least(weight, F.lit(0))).alias(_GONE),
        F.first(F.when(weight > 0, image), ignorenulls=True).alias(_NEW),
        F.first(F.when(weight < 0, image), ignorenulls=True).alias(_OLD),
    )
    found = found.where(F.assert_true(F.col(_KEPT) <= 1, _two_rows(key)).isNull())
    last = F.coalesce(F.col(_NEW), F.col(_OLD))
    flags = {deleted: F.col(_KEPT) == 0}
    if is_new is not None:
        flags[is_new] = (F.col(_KEPT) == 1) & (F.col(_GONE) == 0)
    columns = [quoted(name) if name in key else last.getField(name).alias(name) for name in names]
    return with_columns(found, flags).select(*columns, *map(quoted, flags))


def _two_rows(key: Sequence[str]) -> Column:
    return F.concat(
        F.lit(f"key must be unique in the result, got {list(key)}, by which "),
        F.col(_KEPT).cast("string"),
        F.lit(" rows of one micro-batch have "),
        as_json(map(quoted, key)),
        F.lit("; choose a key that the result guarantees, such as that of its aggregate"),
    )


def as_json(columns: Iterable[Column]) -> Column:
    """Return columns as JSON text that depends on their values alone, not on the session."""
    return F.to_json(F.struct(*columns), _JSON)
