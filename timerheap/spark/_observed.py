"""What tasks that pack rows tell of their event times: a table, and what each row of it is about.

The column ``input`` says what a row is about, of which there are four kinds:

- the newest time of a channel, whose input it is the number of, 0 or 1;
- an earlier time of a channel, whose input it is the number of plus `EARLIER`;
- a metric, whose number in `COUNTED` it is;
- the watermark of an operator whose results the rows are: `REACHED`.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

OBSERVED = pa.schema(
    [("input", pa.int8()), ("channel", pa.string()), ("max_timestamp", pa.int64()), ("count", pa.int64())]
)
"""One row for each channel of each input. The channel is null if the input has no channels; max_timestamp is
null if every row was too far ahead of the clock.

If a channel has times of a day or more before max_timestamp, there is another row with the largest of them.
It counts where max_timestamp is too far ahead: a task knows no clock.
A last row for each metric in `COUNTED` has the number of such rows, if any.
In the row of an operator, the channel is what tells it apart; max_timestamp is null if a task of it had no
key groups.
"""

EARLIER = 2
COUNTED = {"null_time_rows": 4, "ahead_rows": 6}  # even, as numbers of a first input
REACHED = 8
FIRST_COUNTED = min(COUNTED.values())
"""From this number on, rows are about no times of channels."""


def is_newest(about: np.ndarray) -> np.ndarray:
    """Return which rows have the newest time of a channel, given their column ``input``: shape (n,), bool."""
    newest: np.ndarray = about < EARLIER
    return newest


def input_of(about: np.ndarray) -> np.ndarray:
    """Return the inputs of rows about times of channels, given their column ``input``: shape (n,)."""
    inputs: np.ndarray = about % EARLIER
    return inputs
