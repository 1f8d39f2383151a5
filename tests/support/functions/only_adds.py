"""A sum that takes nothing back, so that it only takes rows that only come."""

from __future__ import annotations

from timerheap import AggregateFunction

__all__ = ["OnlyAdds"]


class OnlyAdds(AggregateFunction):
    def create_accumulator(self) -> int:
        return 0

    def add(self, value: int, accumulator: int) -> int:
        return accumulator + value

    def get_result(self, accumulator: int) -> int:
        return accumulator
