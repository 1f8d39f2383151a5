"""A StatefulProcessor as data: the class, the states that it declares, and how Spark calls it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

__all__ = ["DeclaredState", "FrameSettings", "ProcessorWork"]


@dataclass(frozen=True)
class DeclaredState:
    """A state that a processor has asked its handle for.

    Parameters
    ----------
    shape : {"value", "list", "map"}
    schemas : tuple of pyspark.sql.types.StructType
        Of the values; of a map, of its keys and of its values.
    ttl : int or None
        The time to live in ms.
    """

    shape: Literal["value", "list", "map"]
    schemas: tuple[StructType, ...]
    ttl: int | None


@dataclass(frozen=True)
class FrameSettings:
    """Spark's settings that DataFrames depend on.

    Parameters
    ----------
    rows, nbytes : int
        The most rows in one DataFrame, and about how many bytes of Arrow data make it full.
    ints_to_decimals : bool
        Whether ints of a result may become decimals.
    safe : bool
        Whether a value of a result that does not fit its type is an error.
    by_name : bool
        Whether the columns of a result are found by name, else by position.
    """

    rows: int
    nbytes: int
    ints_to_decimals: bool = False
    safe: bool = True
    by_name: bool = True


@dataclass(frozen=True)
class ProcessorWork:
    """A StatefulProcessor to run.

    Parameters
    ----------
    processor : StatefulProcessor
    style : {"rows", "frames"}
        What the processor receives and yields: ``Row`` objects or pandas DataFrames.
    states : dict of str to DeclaredState
        The states that its ``init`` declares, by name.
    event_time : tuple of str
        The path of the column with a watermark of Spark's, whose late rows are dropped; () for none.
    initial : pyspark.sql.types.StructType or None
        The type of the rows of the initial state, if there is one.
    initial_key : tuple of str
        Their key columns, whose names may differ from those of the rows.
    zone : str
        Time zone of the timestamps that the processor receives.
    frames : FrameSettings
    has_event_time : bool
        Whether a column of the results is the event time of what follows, which Spark must see.
    """

    processor: StatefulProcessor
    style: Literal["rows", "frames"]
    states: dict[str, DeclaredState]
    event_time: tuple[str, ...]
    initial: StructType | None
    initial_key: tuple[str, ...]
    zone: str
    frames: FrameSettings
    has_event_time: bool = False
