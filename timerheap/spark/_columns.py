"""Names of columns that are not the user's: hidden ones, and those that results have beside the user's."""

from __future__ import annotations

from collections.abc import Iterable

HIDDEN = "__timerheap_"
"""The names of hidden columns begin with this, and no name of a user's column does."""

# Names of the columns of keys, of rows that wait, and of windows are in checkpoints: who changes one of those
# until the next remark makes checkpoints unreadable.

TIME = f"{HIDDEN}time"
"""Name of the event-time column that is not the user's: of two inputs, or of a timestamp assigner."""

_COMPUTED = f"{HIDDEN}column"
"""Names of columns that functions do not see begin so: they are computed from an expression of the user's."""

INPUT = f"{HIDDEN}input"
"""Name of the column with the number of a row's input, 0 or 1; present if there are two inputs."""

KEY = f"{HIDDEN}key"
"""The names of the key columns of two inputs begin with this; their numbers follow."""

NO_KEY = f"{KEY}0"
"""Name of the key column of windows without a key."""

NO_PARTITION = f"{HIDDEN}no_key"
"""Name of the key column of a query in SQL without PARTITION BY."""

SIDES = f"{HIDDEN}left", f"{HIDDEN}right"
"""Names of the columns with the rows of each input, structs, one of which is null."""

ROW_ID, ROW_TIMESTAMP = f"{HIDDEN}id", f"{HIDDEN}timestamp"
"""Names of the columns with the key and the event time of a row that waits."""

KEY_HASH = f"{HIDDEN}key_hash"
SLICE_END = f"{HIDDEN}slice_end"
"""Names of the columns with the key and the slice of an accumulator."""

ACCUMULATOR = HIDDEN
"""The names of the columns of accumulators begin with this; the numbers of the aggregates follow."""

SESSION_START = f"{HIDDEN}session_start"
"""Name of the column with the start of a session."""

WINDOW = [f"{HIDDEN}window_start", f"{HIDDEN}window_end", f"{HIDDEN}window_time"]
"""Names of the columns with the window of each row."""

BATCH_WINDOW = [f"{HIDDEN}batch_window_start", f"{HIDDEN}batch_window_end", f"{HIDDEN}batch_window_time"]
"""Names of the columns with the window of a micro-batch in which SQL groups rows by `WINDOW`."""

ENDS = f"{HIDDEN}ends"
"""Name of the column with the watermark at which the window of a row ends, in epoch ms."""

GROUPING_SET = f"{_COMPUTED}2:number of the grouping set"
"""Name of the column with the number of a group's grouping set."""

ORDER = f"{HIDDEN}order"
"""The names of the columns by which SQL ranks rows begin with this; their numbers follow."""

RANK = f"{HIDDEN}rank"
"""Name of the column with the rank of a row."""

ARRIVAL = f"{HIDDEN}batch", f"{HIDDEN}place"
"""Names of the columns with a row's micro-batch and its place in that, which `LocalFirstRows` adds."""

# The names from here on are in no checkpoint.

PACKED = "label int, sequence bigint, blob binary"
"""The output of the stage that packs rows: blobs of rows, each with its position in the input.

At `OBSERVATION` it has event times. The label of a partition is that of its first key group. Rows are in
frames, ordered by key group.
"""

AT = "at"
"""Name of the column beside `PACKED` with the time of a batch DataFrame, in epoch ms.

The driver fixes it, so that it is the same in all tasks and in all of their attempts.
"""

HASH = f"{HIDDEN}hash"
"""Name of the column with Spark's xxhash64 of the key; present if the key is not hashed in the pack stage."""

CHANNEL = f"{HIDDEN}channel"
"""Name of the column with a row's channel, a string; present if watermarks are generated per channel."""

AHEAD = f"{HIDDEN}ahead"
"""Name of the column that is true if the event time is too far ahead; present if the query checks this."""

KEPT = f"{HIDDEN}kept"
"""Name of the column that is false if a row only advances the watermark; present if rows are filtered."""

SEEN = f"{HIDDEN}seen"
"""Name of the column with the event time that advances the watermark; present if it is not the row's own.

Where it is null, the row does not advance the watermark.
"""

RESULTS = f"{HIDDEN}results"
"""Name of the column of the operator's output with results: an array of structs in each row, or null."""

METRICS = f"{HIDDEN}metrics"
"""Name of the column of the output with the metrics of a task, as JSON; null in all rows but one."""

OUTPUTS = f"{HIDDEN}outputs"
"""The alias of the part of a plan that has results and side outputs."""

SIDE_OUTPUT = "side_output"
"""Name of the column beside the results with side outputs: a struct with a field for each tag."""

LATE_ROWS = "late_rows"
"""Name of the side output of late rows: their columns, and `LATE_BY`."""

LATE_BY = "late_by"
"""Name of the column that says by how many ms a row is late."""

WINDOW_COLUMNS = ["window_start", "window_end", "window_time"]
"""Names of the columns with the start, the end and the last ms of the window."""

EARLY = "early"
"""Name of the column that is true in an early result, before the window has ended."""

AGGREGATED = f"{HIDDEN}input"
"""The names of the columns that windows aggregate begin with this; the number of the aggregate follows."""

LATE_SIDE = f"{HIDDEN}side"
"""Name of the column of SQL with late rows beside results."""

COUNT = f"{HIDDEN}count"
"""Name of the column of SQL with an aggregate where the query has none."""

VALUE = f"{HIDDEN}value"
TIMER = (f"{HIDDEN}epoch_ms", f"{HIDDEN}event_time", f"{HIDDEN}name")
"""Names of the columns that `ContentsTable` and `TimerTable` read."""

OF_KEY = f"{HIDDEN}of_key"
"""The names of the key columns beside the rows of a chunk begin with this; their numbers follow."""


def computed_name(number: int, name: str) -> str:
    """Return the name of a computed column, which has a number that is unique among the columns.

    Examples
    --------
    >>> computed_name(3, "lower(k)")
    '__timerheap_column3:lower(k)'
    """
    return f"{_COMPUTED}{number}:{name}"


def shown_name(name: str) -> str:
    """Return the name that users know a column by: that of the expression if the column is computed.

    Examples
    --------
    >>> shown_name(computed_name(3, "lower(k)")), shown_name("k")
    ('lower(k)', 'k')
    """
    return name.split(":", 1)[1] if name.startswith(_COMPUTED) else name


def added_name(name: str, taken: Iterable[str]) -> str:
    """Return the name of a column that timerheap adds to columns of the user's, whatever their names.

    Names that differ in their case alone are one name in Spark.

    Examples
    --------
    >>> added_name("value", ["k"]), added_name("value", ["VALUE", "timerheap_value"])
    ('value', 'timerheap_timerheap_value')
    """
    known = {each.lower() for each in taken}
    while name.lower() in known:
        name = f"timerheap_{name}"
    return name


def distinct(names: Iterable[str]) -> list[str]:
    """Return the names of columns in a table: as they are, unless one before has the same name."""
    found: list[str] = []
    for name in names:
        found.append(added_name(name, found))
    return found


def visible(names: Iterable[str]) -> list[str]:
    """Return the names of the columns that are not computed."""
    return [name for name in names if not name.startswith(_COMPUTED)]
