"""Names of columns that are not the user's: hidden ones, and those that results have beside the user's."""

from __future__ import annotations

import re
from collections.abc import Iterable

OURS = "__timerheap"  # begins no name of a user's column
HIDDEN = f"{OURS}_"  # begins all names of hidden columns

# In checkpoints, as names of keys, of rows that wait and of accumulators: changing one makes them unreadable.

TIME = f"{HIDDEN}time"  # the event time if it is no column of the user's: of two inputs, or of an assigner
COMPUTED = f"{HIDDEN}column"  # begins columns of the user's expressions, which functions do not see
INPUT = f"{HIDDEN}input"  # the number of a row's input, 0 or 1, where there are two
KEY = f"{HIDDEN}key"  # begins the key columns of two inputs; their numbers follow
SIDES = f"{HIDDEN}left", f"{HIDDEN}right"  # the rows of two inputs, structs, one of which is null
TABLES = f"{HIDDEN}table"  # begins the columns of the tables of a join in SQL behind these two
NO_KEY = f"{KEY}0"  # the key of windows without a key
NO_PARTITION = f"{HIDDEN}no_key"  # the key of SQL without PARTITION BY
ROW_ID, ROW_TIMESTAMP = f"{HIDDEN}id", f"{HIDDEN}timestamp"  # of the key of a row that waits, and its time

KEY_HASH, SLICE_END = f"{HIDDEN}key_hash", f"{HIDDEN}slice_end"  # the key and the slice of an accumulator
ACCUMULATOR = HIDDEN  # begins the columns of accumulators; the numbers of the aggregates follow
SESSION_START = f"{HIDDEN}session_start"

WINDOW = [f"{HIDDEN}window_start", f"{HIDDEN}window_end", f"{HIDDEN}window_time"]  # of each row
BATCH_WINDOW = [f"{HIDDEN}batch_window_start", f"{HIDDEN}batch_window_end", f"{HIDDEN}batch_window_time"]
"""The window of a micro-batch in which SQL groups rows by `WINDOW`."""

ENDS = f"{HIDDEN}ends"  # the watermark at which the window of a row ends, in epoch ms
GROUPING_SET = f"{COMPUTED}2:number of the grouping set"
ORDER = f"{HIDDEN}order"  # begins the columns by which SQL ranks rows; their numbers follow
RANK = f"{HIDDEN}rank"
FOLLOWED = f"{HIDDEN}followed"  # the channel column of an input whose watermark is that of other operators
ARRIVAL = f"{HIDDEN}batch", f"{HIDDEN}place"  # the micro-batch of a row, and its place in that

WEIGHT = f"{HIDDEN}weight"  # how often a row of a changelog is there more than before: 1 or -1
PRESENT = f"{HIDDEN}present"  # the field of rows in a state that have no columns but their key

# In no checkpoint: the input of the stage that packs rows.

HASH = f"{HIDDEN}hash"  # Spark's xxhash64 of the key, if the stage does not compute it
CHANNEL = f"{HIDDEN}channel"  # a string, if watermarks are generated per channel
AHEAD = f"{HIDDEN}ahead"  # whether the event time is too far ahead, if the query checks this
KEPT = f"{HIDDEN}kept"  # false if a row only advances the watermark, if rows are filtered
SEEN = f"{HIDDEN}seen"  # the time that advances the watermark, or null, if it is not the row's own
ENDED = f"{HIDDEN}ended"  # true in a row that only ends the version before it
ORIGIN = f"{HIDDEN}origin"  # of which side a changed row is, or whether it is a pair of both
AGGREGATED = f"{HIDDEN}input"  # begins the columns that windows aggregate; the aggregate's number follows

# In no checkpoint: the output of that stage, and what else an operator gets and returns.

PACKED = "label int, sequence bigint, blob binary"
"""Blobs of rows, each with its position in the input; at `OBSERVATION`, event times.

The label of a partition is that of its first key group. Rows are in frames, ordered by key group.
"""

AT = "at"
"""The time of a batch DataFrame, in epoch ms, beside `PACKED`.

The driver fixes it, so that it is the same in all tasks and in all of their attempts.
"""

RESULTS = f"{HIDDEN}results"  # an array of structs in each row, or null
METRICS = f"{HIDDEN}metrics"  # of a task, as JSON; null in all rows but one
HAS_WATERMARK = f"{HIDDEN}has_watermark"  # in the metadata of that column: whether other operators can follow
OUTPUTS = f"{HIDDEN}outputs"  # the alias of the part of a plan that has results and side outputs
SIDE_OUTPUT = "side_output"  # side outputs beside the results: a struct with a field for each tag
OF_BATCH = f"{HIDDEN}of_batch"  # the alias of the results of an operator on a batch
REAL_TIME = f"{HIDDEN}real_time"  # the alias of the part of a plan whose rows operators take as they come
MARK = f"{HIDDEN}mark"  # what an operator in real-time mode has reached, in a row without results
MARKED = f"{HIDDEN}marked"  # the alias of the part of a plan whose rows have that column
ASIDE = f"{HIDDEN}aside"  # the alias of the part of a plan that has late rows alone
LATE_ROWS = "late_rows"  # the side output of late rows: their columns, and `LATE_BY`
LETTERS = "dead_letters"  # the side output of the calls of a function that have raised an exception
LATE_BY = "late_by"  # by how many ms a row is late
LATE_SIDE = f"{HIDDEN}side"  # late rows beside the results of SQL
TIMED_OUT = f"{HIDDEN}timed_out"  # whether a row is of a match that is not complete
COUNT = f"{HIDDEN}count"  # an aggregate for SQL that has none
WINDOW_COLUMNS = ["window_start", "window_end", "window_time"]  # the last is the last ms of the window
WINDOW_BOUND = "timerheap.window_bound"
"""Metadata key of a column with a bound of windows: which of `WINDOW_COLUMNS` it is.

Windows with the same time are emitted in one micro-batch.
"""

CHANGE_TYPE = "_change_type"  # what has become of a row of a changelog
COMMIT = ("_commit_version", "_commit_timestamp")  # beside it in a change feed of Delta, or of Spark
CHANGED = f"{HIDDEN}change_type"  # the same while SQL computes, of whose columns it is none
EARLY = "early"  # true in an early result, before the window has ended

# In no checkpoint: the state that a query begins with.

VALUE = f"{HIDDEN}value"  # the contents of a state; see `ContentsTable`
TIMER = (f"{HIDDEN}epoch_ms", f"{HIDDEN}event_time", f"{HIDDEN}name")  # see `timer_entries`
OF_KEY = f"{HIDDEN}of_key"  # begins the key columns beside the rows of a chunk; their numbers follow


def computed_name(number: int, name: str) -> str:
    """Return the name of a computed column, which has a number that is unique among the columns."""
    return f"{COMPUTED}{number}:{name}"


def shown_name(name: str) -> str:
    """Return the name that users know a column by: that of the expression if the column is computed."""
    return name.split(":", 1)[1] if name.startswith(COMPUTED) else name


def side_name(number: int) -> str:
    """Return the name of the column that has the rows of a table of a join in SQL, which are structs."""
    return SIDES[number] if number < len(SIDES) else f"{TABLES}{number}"


def is_side(name: str) -> bool:
    """Return whether a column has the rows of a table of a join in SQL."""
    return name in SIDES or name.startswith(TABLES)


def numbered_name(at: int, name: str) -> str:
    """Return the name of a column in a table that has others of its `name`; checkpoints have it."""
    return f"{OURS}:{at}:{name}"


def name_without_number(name: str) -> str:
    """Return the name that was numbered by `numbered_name`, and any other as it is."""
    return re.sub(rf"^{OURS}:\d+:", "", name)


def group_item(number: int) -> str:
    """Return the name of what SQL computes of groups for a rank of them."""
    return f"{OURS}:item{number}"


def added_name(name: str, taken: Iterable[str]) -> str:
    """Return the name of a column that timerheap adds to columns of the user's, whatever their names."""
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
