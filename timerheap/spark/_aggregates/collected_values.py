"""Aggregates that keep all values of a group, and can take them back: lists, percentiles, first and last."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

import numpy as np

from timerheap.functions import AggregateFunction


class Collected(AggregateFunction):
    """Keeps the values that are not null in the order of arrival.

    distinct: whether each value counts once
    """

    def __init__(self, distinct: bool = False) -> None:
        self._distinct = distinct

    def create_accumulator(self) -> list[Any]:
        return []

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        if value is not None:
            accumulator.append(value)
        return accumulator

    def merge(self, acc_a: list[Any], acc_b: list[Any]) -> list[Any]:
        return acc_a + acc_b

    def retract(self, value: Any, accumulator: list[Any]) -> list[Any]:
        """Remove the oldest value that is equal; what is not there has been forgotten."""
        if value in accumulator:
            accumulator.remove(value)
        return accumulator

    def get_result(self, accumulator: list[Any]) -> Any:
        values = _once(accumulator) if self._distinct else accumulator
        return self.of_values(values) if values else None

    @abstractmethod
    def of_values(self, values: list[Any]) -> Any:
        """Return the result for values, of which there is at least one."""


def _once(values: list[Any]) -> list[Any]:
    try:
        return list(dict.fromkeys(values))
    except TypeError:  # of lists and structs
        return [one for at, one in enumerate(values) if one not in values[:at]]


class ListedValues(Collected):
    """ARRAY_AGG: the values."""

    def of_values(self, values: list[Any]) -> list[Any]:
        return values


class JoinedTexts(Collected):
    """LISTAGG: the texts with a separator between them."""

    def __init__(self, separator: str = ",", distinct: bool = False) -> None:
        super().__init__(distinct)
        self._separator = separator

    def of_values(self, values: list[str]) -> str:
        return self._separator.join(values)


class SummedValues(Collected):
    """SUM of values, which is exact but for doubles: of these it is the nearest double."""

    def of_values(self, values: list[Any]) -> Any:
        return math.fsum(values) if isinstance(values[0], float) else sum(values)


class AveragedValues(SummedValues):
    """AVG of values.

    scale: the digits behind the point of a decimal, None for a double
    """

    def __init__(self, scale: int | None, distinct: bool = False) -> None:
        super().__init__(distinct)
        self._scale = scale

    def of_values(self, values: list[Any]) -> Any:
        total = super().of_values(values)
        if self._scale is None:
            return float(total) / len(values)
        digits = Decimal(1).scaleb(-self._scale)
        return (Decimal(total) / len(values)).quantize(digits, ROUND_HALF_UP)


class Percentile(Collected):
    """PERCENTILE of values, between two of which it is interpolated."""

    def __init__(self, fraction: float, distinct: bool = False) -> None:
        super().__init__(distinct)
        self._fraction = fraction

    def of_values(self, values: list[float]) -> float:
        return float(np.quantile(values, self._fraction))


class PickedValue(Collected):
    """FIRST_VALUE, or LAST_VALUE, in the order of arrival."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def of_values(self, values: list[Any]) -> Any:
        return values[self._at]


class OfSeries(Collected):
    """A pandas function from a series to a value."""

    def __init__(self, function: Callable[..., Any], distinct: bool = False) -> None:
        super().__init__(distinct)
        self._function = function

    def of_values(self, values: list[Any]) -> Any:
        import pandas as pd

        result = self._function(pd.Series(values))
        return result.item() if isinstance(result, np.generic) else result


class OfDifferent(Collected):
    """A function of the user, of each different value, or combination of values, nulls among them."""

    def __init__(self, function: AggregateFunction) -> None:
        super().__init__(distinct=True)
        self._function = function

    def add(self, value: Any, accumulator: list[Any]) -> list[Any]:
        accumulator.append(value)
        return accumulator

    def of_values(self, values: list[Any]) -> Any:
        accumulator = self._function.create_accumulator()
        for value in _once([tuple(one.values()) if isinstance(one, dict) else one for one in values]):
            accumulator = self._function.add(value, accumulator)
        return self._function.get_result(accumulator)


class FilteredFunction(AggregateFunction):
    """A function of the rows that meet a condition, which is the last argument of each row."""

    def __init__(self, function: AggregateFunction) -> None:
        self._function = function
        if callable(getattr(function, "retract", None)):
            self.retract = self._retract

    def create_accumulator(self) -> Any:
        return self._function.create_accumulator()

    def add(self, value: tuple[Any, ...], accumulator: Any) -> Any:
        return self._function.add(_given(value), accumulator) if value[-1] else accumulator

    def _retract(self, value: tuple[Any, ...], accumulator: Any) -> Any:
        function: Any = self._function
        return function.retract(_given(value), accumulator) if value[-1] else accumulator

    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        return self._function.merge(acc_a, acc_b)

    def get_result(self, accumulator: Any) -> Any:
        return self._function.get_result(accumulator)


def _given(value: tuple[Any, ...]) -> Any:
    return value[0] if len(value) == 2 else value[:-1]
