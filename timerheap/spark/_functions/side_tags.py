"""Which side outputs a function has: the tags that it refers to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.functions import Function
from timerheap.output_tag import OutputTag
from timerheap.types import arrow_type


def side_tags(side_outputs: object, *functions: object) -> tuple[OutputTag, ...]:
    """Return the tags of a query, checked; by default those that its functions refer to."""
    if side_outputs is None:
        seen: set[int] = set()
        tags = list(dict.fromkeys(tag for function in functions for tag in _tags_of(function, seen)))
    elif isinstance(side_outputs, Sequence) and all(isinstance(tag, OutputTag) for tag in side_outputs):
        tags = list(side_outputs)
    else:
        raise ArgumentTypeError(f"side_outputs must be a list of OutputTag objects, got {side_outputs!r}")
    ids = [tag.tag_id for tag in tags]
    if len(set(ids)) < len(ids):
        raise ArgumentValueError(f"side_outputs must have different ids, got {ids}")
    for tag in tags:
        arrow_type(tag.type_info, f"side output {tag.tag_id!r}")
    return tuple(tags)


def _tags_of(function: object, seen: set[int]) -> Iterator[OutputTag]:
    """Yield the tags in attributes of a function, and in globals and closures of its methods."""
    # The functions that it holds are searched, too, also in objects of timerheap, such as an `IntervalJoin`;
    # `seen` has the ids of those that have been.
    if id(function) in seen:
        return
    seen.add(id(function))
    yield from _tags_of_code(function)
    attributes = list(getattr(function, "__dict__", {}).values())
    yield from _among(attributes)
    for inner in attributes:
        if isinstance(inner, Function | FunctionType | MethodType) or _is_of_timerheap(type(inner)):
            yield from _tags_of(inner, seen)
    for class_ in type(function).__mro__:
        if not _is_of_timerheap(class_):
            for member in vars(class_).values():
                yield from _among([member])
                yield from _tags_of_code(member)


def _is_of_timerheap(class_: type) -> bool:
    return class_.__module__.partition(".")[0] == "timerheap"


def _tags_of_code(member: object) -> Iterator[OutputTag]:
    plain: Any = getattr(member, "__func__", member)
    code = getattr(plain, "__code__", None)
    if isinstance(code, CodeType):
        names = set(_names_in_code(code))
        values = [value for name, value in plain.__globals__.items() if name in names]
        modules = [value for value in values if isinstance(value, ModuleType)]
        yield from _among(values)
        yield from _among(vars(m)[name] for m in modules for name in names & vars(m).keys())
        yield from _among(cell.cell_contents for cell in plain.__closure__ or () if _is_set(cell))


def _among(values: Iterable[Any]) -> Iterator[OutputTag]:
    for value in values:
        if isinstance(value, OutputTag):
            yield value
        elif isinstance(value, dict):
            yield from (tag for tag in value.values() if isinstance(tag, OutputTag))
        elif isinstance(value, list | tuple | set | frozenset):
            yield from (tag for tag in value if isinstance(tag, OutputTag))


def _names_in_code(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in_code(constant)


def _is_set(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
