"""Subscripts of PyFlink's generic classes, as in ``WindowFunction[tuple, tuple, str, CountWindow]``."""

from __future__ import annotations

from types import GenericAlias

__all__ = ["Subscripted"]


class Subscripted:
    """A class that can be subscripted in annotations and in the bases of a class; the types are not used."""

    def __class_getitem__(cls, types: object) -> GenericAlias:
        return GenericAlias(cls, types)
