"""Tags of side outputs."""

from __future__ import annotations

from timerheap.errors import ArgumentTypeError, ArgumentValueError
from timerheap.types import Types


class OutputTag:
    """The name and the type of a side output (``pyflink.datastream.OutputTag``).

    A function sends a value to it with ``yield tag, value``, as in PyFlink, or with
    ``ctx.output(tag, value)``, as in Flink's Java API. Tags with equal ids are equal.

    Parameters
    ----------
    tag_id : str
        Unique among the side outputs of a function.
    type_info
        The type of the values: a ``Types.*``, a DDL string, a Spark or a pyarrow type, or a list of
        ``Types.*``, the type of rows without names. There is no default, since values are never pickled.

    Examples
    --------
    >>> OutputTag("late-data", Types.TUPLE([Types.STRING(), Types.LONG()]))
    OutputTag('late-data', TypeInformation('struct<`f0`:string,`f1`:bigint>'))
    """

    def __init__(self, tag_id: str, type_info: object = None) -> None:
        if not isinstance(tag_id, str) or not tag_id:
            raise ArgumentValueError(f"tag_id must be a non-empty str, got {tag_id!r}")
        if type_info is None:
            raise ArgumentTypeError(
                f"type_info of OutputTag({tag_id!r}) must be given, since values are never pickled, got "
                "None; pass the type of the values, such as Types.LONG() or Types.TUPLE([Types.STRING()])"
            )
        self.tag_id = tag_id
        self.type_info = Types.ROW(type_info) if isinstance(type_info, list) else type_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.tag_id == self.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r}, {self.type_info!r})"


def is_tagged(record: object) -> bool:
    """Return whether a record that a function yields is a pair of a tag and a value."""
    return isinstance(record, tuple) and len(record) == 2 and isinstance(record[0], OutputTag)
