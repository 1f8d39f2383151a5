"""Flink's delta trigger and delta evictor, which compare elements by a distance."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from numbers import Real
from typing import Any

from timerheap.state import ValueStateDescriptor
from timerheap.windows.evictors import OneSidedEvictor, TimestampedValue
from timerheap.windows.triggers import QuietTrigger, Trigger, TriggerResult


class DeltaFunction(ABC):
    """Measures the distance between two elements (Flink's ``DeltaFunction``)."""

    @abstractmethod
    def get_delta(self, old_data_point: Any, new_data_point: Any) -> float:
        """Return the distance from the older element to the newer one."""


Delta = DeltaFunction | Callable[[Any, Any], float]


class DeltaTrigger(QuietTrigger):
    """Fires when the distance of an element from the last one that fired exceeds a threshold.

    Before the first firing, the distance is measured from the first element.

    Parameters
    ----------
    threshold : float
    delta_function : DeltaFunction or callable
        ``(old_data_point, new_data_point) -> delta``.
    type_info : optional
        The type of an element, because the trigger keeps one in state: a ``Types.*``, a DDL string, a Spark
        or a pyarrow type. The default is the operator's `element_type`, which an AggregateFunction without an
        evictor does not have.

    Examples
    --------
    The top speed of the last ten seconds, every 50 metres, as in Flink's ``TopSpeedWindowing``:

    >>> from timerheap.windows import GlobalWindows, TimeEvictor
    >>> top_speed = dict(
    ...     assigner=GlobalWindows.create(),
    ...     trigger=DeltaTrigger.of(50, lambda old, new: new["metres"] - old["metres"]),
    ...     evictor=TimeEvictor.of(10_000),
    ... )
    """

    def __init__(self, threshold: float, delta_function: Delta, type_info: object = None) -> None:
        self.threshold, self.delta_function = _checked(threshold, delta_function)
        self._last = ValueStateDescriptor("last-element", type_info)

    @staticmethod
    def of(threshold: float, delta_function: Delta, type_info: object = None) -> DeltaTrigger:
        """Return a new trigger."""
        return DeltaTrigger(threshold, delta_function, type_info)

    def on_element(
        self, element: Any, timestamp: int, window: Any, ctx: Trigger.TriggerContext
    ) -> TriggerResult:
        state = ctx.get_partitioned_state(self._last)
        last = state.value()
        if last is None:
            state.update(element)
        elif _delta(self.delta_function, last, element) > self.threshold:
            state.update(element)
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def clear(self, window: Any, ctx: Trigger.TriggerContext) -> None:
        ctx.get_partitioned_state(self._last).clear()

    def __repr__(self) -> str:
        return f"DeltaTrigger({self.threshold}, {self.delta_function!r})"


class DeltaEvictor(OneSidedEvictor):
    """Evicts elements whose distance to the last one is at least a threshold.

    Parameters
    ----------
    threshold : float
    delta_function : DeltaFunction or callable
        ``(old_data_point, new_data_point) -> delta``; the new one is the last element.
    do_evict_after : bool, default False
        Evict after the window function instead of before it.
    """

    def __init__(self, threshold: float, delta_function: Delta, do_evict_after: bool = False) -> None:
        super().__init__(do_evict_after)
        self.threshold, self.delta_function = _checked(threshold, delta_function)

    @staticmethod
    def of(threshold: float, delta_function: Delta, do_evict_after: bool = False) -> DeltaEvictor:
        """Return a new evictor."""
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def evict(self, elements: list[TimestampedValue]) -> None:
        if elements:
            last = elements[-1].value
            elements[:] = [
                e for e in elements if not _delta(self.delta_function, e.value, last) >= self.threshold
            ]

    def __repr__(self) -> str:
        return f"DeltaEvictor({self.threshold}, {self.delta_function!r})"


def _checked(threshold: float, delta_function: Delta) -> tuple[float, Delta]:
    if not isinstance(threshold, Real) or isinstance(threshold, bool):
        raise TypeError(f"threshold must be a number, got {threshold!r}")
    if threshold != threshold:
        raise ValueError("threshold must be a number other than nan, got nan")
    is_class = isinstance(delta_function, type)
    if is_class or not (isinstance(delta_function, DeltaFunction) or callable(delta_function)):
        raise TypeError(
            "delta_function must be a DeltaFunction or a callable (old_data_point, new_data_point) -> delta, "
            f"got {delta_function!r}{'; pass an instance of it' if is_class else ''}"
        )
    return threshold, delta_function


def _delta(function: Delta, old: Any, new: Any) -> float:
    return function.get_delta(old, new) if isinstance(function, DeltaFunction) else function(old, new)
