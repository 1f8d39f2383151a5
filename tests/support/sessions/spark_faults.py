"""What Spark's own operators get wrong in PySpark 4.1, so that tests can compare with them there."""

from __future__ import annotations

from typing import Any

import pyspark

# Its states rebuild a tuple in an array from one argument, which a Row and a NamedTuple do not take.
ONLY_PLAIN_TUPLES_IN_ARRAYS = pyspark.__version__.startswith("4.1.")

# It takes the key of a group from the first row of its initial state, of which a key without one has none.
NEEDS_LIMIT_WITH_INITIAL_STATE = pyspark.__version__.startswith("4.1.")


def nested(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a Row or a NamedTuple as the states of this version take it in an array."""
    return tuple(value) if ONLY_PLAIN_TUPLES_IN_ARRAYS else value
