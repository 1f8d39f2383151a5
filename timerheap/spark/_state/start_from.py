"""`start_from`: a query whose operators start from state, each by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pyspark.sql import DataFrame, SparkSession

from timerheap._arguments import instance
from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._compat import refuse_connect
from timerheap.spark._plan.starts import Start, starting_from
from timerheap.spark._state.initial_contents import checked_start, not_of_batch
from timerheap.spark._state.initial_state import InitialState
from timerheap.spark._state.read_checkpoint import CheckpointState


def start_from(
    spark: SparkSession,
    initial_state: CheckpointState | InitialState | Mapping[str, CheckpointState | InitialState],
    query: Callable[[], DataFrame],
) -> DataFrame:
    """Return a query whose operators start from state: that of another query, or tables.

    Every function that keeps state can start so: windows, joins, `sql` and all others. For `process` and
    those functions that have an argument `initial_state`, it is the same.

    Parameters
    ----------
    spark : pyspark.sql.SparkSession
    initial_state : CheckpointState, InitialState, or dict of str to these
        The state of the only operator, or of operators by their `name`. An operator without a name is called
        "timerheap", or "timerheap_2" and so on behind that. Those that are not in the dict begin without
        state.
    query : callable
        Builds the query, of streams, and returns its result. It is called once.

    Returns
    -------
    pyspark.sql.DataFrame
        What `query` has returned. Start it with a new checkpoint.

    Raises
    ------
    ArgumentError
        If the query has no operator of a name, or several and one state; if a table does not fit the state of
        its operator; or if the query is of batches.
    UnsupportedError
        On Spark Connect.

    Notes
    -----
    The input of the query must begin after the rows that the state has seen. Where a checkpoint is there, and
    nothing of it is to be corrected, `continue_from` takes the positions of the sources along as well.

    Examples
    --------
    Leave out a customer of windows that are open::

        old = timerheap.spark.read_checkpoint(spark, "/checkpoints/totals")
        others = old.windows().where("customer <> 'ann'")
        start = timerheap.spark.InitialState(windows=others, watermarks=old.watermarks())
        result = timerheap.spark.start_from(spark, start, totals)
    """
    refuse_connect(spark, "start_from()")
    instance("spark", spark, SparkSession)
    if not callable(query):
        raise ArgumentTypeError(f"query must be a function that returns a DataFrame, got {query!r}")
    named = isinstance(initial_state, Mapping)
    states = initial_state if isinstance(initial_state, Mapping) else {"": initial_state}
    starts = {
        name: checked_start(f"initial_state[{name!r}]" if named else "initial_state", state, spark)
        for name, state in states.items()
    }
    made: set[str] = set()

    def start_of_name(name: str) -> Start | None:
        made.add(name)
        return starts.get(name if named else "")

    with starting_from(start_of_name):
        df = query()
    _expect_operators(initial_state, sorted(made))
    return df


def _expect_operators(initial_state: object, made: list[str]) -> None:
    """Raise ArgumentValueError unless a query has made the operators that have state to start from."""
    if not made:
        raise not_of_batch(initial_state)
    if not isinstance(initial_state, Mapping):
        if len(made) > 1:
            raise ArgumentValueError(
                f"initial_state must be a dict of states by the names of operators, which are {made}, got "
                f"{initial_state!r}"
            )
    elif unknown := sorted(initial_state.keys() - made):
        raise ArgumentValueError(
            f"initial_state must have names of operators of the query, which are {made}, got {unknown[0]!r}"
        )
