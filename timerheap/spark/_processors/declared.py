"""What the driver tells workers of a processor: its states, and Spark's settings for DataFrames."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pyspark.sql.types import StructType


@dataclass(frozen=True)
class DeclaredState:
    """A state that a processor has asked its handle for."""

    shape: Literal["value", "list", "map"]
    schemas: tuple[StructType, ...]  # of the values; of a map, of its keys and of its values
    ttl: int | None  # ms


@dataclass(frozen=True)
class FrameSettings:
    """Spark's settings that DataFrames depend on."""

    rows: int  # the most in one DataFrame
    nbytes: int  # about how many bytes of Arrow data make a DataFrame full
    ints_to_decimals: bool = False  # whether ints of a result may become decimals
    safe: bool = True  # whether a value of a result that does not fit its type is an error
    by_name: bool = True  # whether the columns of a result are found by name, else by position
