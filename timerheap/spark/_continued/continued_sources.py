"""The sources of a streaming query: which there are, where they go on, and a plan without them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.spark._compat import analyzed, children_of, jvm, of_plan
from timerheap.spark._continued.checkpoint_files import Planned

NAMED_SOURCES = "spark.sql.streaming.queryEvolution.enableSourceEvolution"
"""Name of the setting with which sources have names, and the log of offsets has version 2."""
NOTHING = "-"
"""Spark's offset of a source that has had no row."""
BEGIN = "0"
"""Where a source of `Sources.without_rows` begins, and stays."""


class Sources:
    """The sources of a query, in the order in which Spark numbers them.

    places: the number of the source at each place in the query: one DataFrame may stand at several
    """

    def __init__(self, df: DataFrame) -> None:
        self._df = df
        self._nodes: list[Any] = []
        self.places: list[int] = []
        self._visit(analyzed(df))

    def _visit(self, node: Any) -> None:
        if _is_source(node):
            found = (number for number, other in enumerate(self._nodes) if node.equals(other))
            self.places.append(next(found, len(self._nodes)))
            if self.places[-1] == len(self._nodes):
                self._nodes.append(node)
        for each in children_of(node):
            self._visit(each)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def names(self) -> list[str]:
        """The names that the user has given with ``readStream.name()``."""
        return [str(node.sourceIdentifyingName().name()) for node in self._nodes]

    @property
    def shown(self) -> str:
        return "; ".join(f"{n}: {node.simpleString(100)}" for n, node in enumerate(self._nodes))

    def without_rows(self, others: int) -> DataFrame:
        """Return the query with sources that have no rows, and a number of `others`, which Spark needs."""
        spark, df = self._df.sparkSession, self._df
        result = of_plan(spark, _without_rows(analyzed(df), spark))
        columns = [F.lit(None).cast(field.dataType).alias(field.name) for field in df.schema]
        for number in range(others):
            reader: Any = spark.readStream.format("rate")
            if spark.conf.get(NAMED_SOURCES, "false") == "true":
                reader = reader.name(f"timerheap_{number}")
            result = result.union(reader.load().where(F.lit(False)).select(*columns))
        return result


def _is_source(node: Any) -> bool:
    return bool(node.children().isEmpty() and node.nodeName().startswith("StreamingRelation"))


def _without_rows(node: Any, spark: SparkSession) -> Any:
    view = jvm(spark)
    if _is_source(node):
        relation = view.org.apache.spark.sql.catalyst.plans.logical.LocalRelation
        nothing = view.PythonUtils.toSeq([])
        return relation(node.output(), nothing, True, view.scala.Option.empty())
    children = children_of(node)
    if not any(each.isStreaming() for each in children):
        return node
    return node.withNewChildren(view.PythonUtils.toSeq([_without_rows(each, spark) for each in children]))


@dataclass(frozen=True)
class Positions:
    """Which source of a checkpoint each source of a query goes on with.

    folders: what each has in the folder ``sources``, by that of the checkpoint
    lines: where each goes on, by the number of a line, or its name, in the log of the checkpoint's offsets;
        None for a source that begins as a new one
    gone: the lines of sources with which none goes on
    """

    folders: dict[str, str]
    lines: dict[str, str | None]
    gone: tuple[str, ...]

    def placed(self, planned: Planned) -> Planned:
        """Return a planned micro-batch of the checkpoint as one of the query."""
        offsets = {
            line: NOTHING if origin is None else planned.offsets[origin]
            for line, origin in self.lines.items()
        }
        return replace(planned, offsets=offsets)

    @classmethod
    def of(
        cls,
        sources: Sources,
        stopped: Planned,
        folders: Sequence[str],
        are_alike: Callable[[], bool],
        wanted: object,
    ) -> Positions:
        """Match the sources of a query with those of a checkpoint.

        folders: what the checkpoint has in its folder ``sources``
        are_alike: returns whether all of these have the same contents, for which it reads them
        wanted: what the user has said
        """
        if stopped.version == "v2":
            if wanted is not None:
                raise ArgumentValueError(f"sources must be None where sources have names, got {wanted!r}")
            known = {name: name if name in stopped.offsets else None for name in sources.names}
            gone = tuple(name for name in stopped.offsets if name not in known)
            return cls({name: name for name in folders if known.get(name)}, known, gone)
        places = _source_places(stopped, folders, are_alike, sources, wanted)
        numbers = _source_numbers(sources, stopped, 1 + max(places, default=-1), wanted)
        first = {number: str(places.index(number)) for number in places}
        lines = {
            str(line): None if (number := numbers[source]) is None else first[number]
            for line, source in enumerate(sources.places)
        }
        kept = {str(number): str(new) for new, number in enumerate(numbers) if str(number) in folders}
        gone = tuple(str(line) for line, number in enumerate(places) if number not in numbers)
        return cls(kept, lines, gone)


def _source_places(
    stopped: Planned,
    folders: Sequence[str],
    are_alike: Callable[[], bool],
    sources: Sources,
    wanted: object,
) -> list[int]:
    """Return the number of the source of each line in a log of offsets, where one may have several."""
    lines = list(stopped.offsets.values())
    different = list(dict.fromkeys(lines))
    # Without folders, as of Delta, offsets are all there is, and sources with the same one go on alike.
    alike = not folders and wanted is None and NOTHING not in lines and len(different) == len(sources)
    if len(folders) in (0, len(lines)) and not alike:
        return [*range(len(lines))]
    if len(different) == len(folders) or alike:
        return [different.index(line) for line in lines]
    if len(sources.places) == len(lines):
        return sources.places
    if are_alike():  # each of them will do
        return [min(place, len(folders) - 1) for place in range(len(lines))]
    raise ArgumentValueError(
        f"query must have its sources where the old one has them, got {len(sources.places)} places, and the "
        f"checkpoint has {len(lines)} for {len(folders)} sources, which cannot be told apart by their "
        "offsets; let a row come to each source, and continue then"
    )


def _source_numbers(sources: Sources, stopped: Planned, old: int, wanted: object) -> list[int | None]:
    """Return the number of the checkpoint's source that each one goes on with, None for none."""
    new = len(sources)
    if wanted is None:
        if old != new:
            have = "; ".join(f"{number}: {offset}" for number, offset in stopped.offsets.items())
            raise ArgumentValueError(
                f"sources must be given where their number has changed, got None for {new} sources "
                f"({sources.shown}), and the checkpoint has {old} ({have}); pass for each source of the "
                "query its number in the checkpoint, or None for a new one, such as sources=[0, None]"
            )
        return [*range(new)]
    if not isinstance(wanted, Sequence) or isinstance(wanted, str):
        raise ArgumentTypeError(f"sources must be a list of int or None, such as [0, None], got {wanted!r}")
    numbers = [each for each in wanted if each is not None]
    known = all(type(each) is int and 0 <= each < old for each in numbers)
    if len(wanted) != new or not known or len({*numbers}) < len(numbers):
        raise ArgumentValueError(
            f"sources must have a number from 0 to {old - 1}, each at most once, or None for each of the "
            f"{new} sources of the query ({sources.shown}), got {wanted!r}"
        )
    return [*wanted]
