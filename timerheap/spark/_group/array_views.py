"""Arrow arrays as the native code sees them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from timerheap._native._heap import BITS, FIXED, FLOAT, TEXT, ArrayView

__all__ = ["clear_unequal", "is_flat", "view_of"]


def is_flat(type_: pa.DataType) -> bool:
    """Return whether `view_of` takes arrays of a type: all types but null and nested ones."""
    return bool(
        pa.types.is_primitive(type_)
        or pa.types.is_decimal(type_)
        or pa.types.is_fixed_size_binary(type_)
        or _offset_width(type_)
    )


def view_of(array: pa.Array) -> ArrayView:
    """Return a view of an array, without copying."""
    type_ = array.type
    validity, *buffers = array.buffers()
    validity = validity if array.null_count else None
    if width := _offset_width(type_):
        return ArrayView(TEXT, width, array.offset, len(array), validity, *buffers)
    if pa.types.is_boolean(type_):
        return ArrayView(BITS, 0, array.offset, len(array), validity, None, *buffers)
    kind = FLOAT if pa.types.is_float32(type_) or pa.types.is_float64(type_) else FIXED
    return ArrayView(kind, type_.bit_width // 8, array.offset, len(array), validity, None, *buffers)


def clear_unequal(stored: pa.Array, places: np.ndarray, values: pa.Array, same: np.ndarray) -> None:
    """Clear `same` where a value differs from the stored one; NaN equals NaN, and null equals null.

    Parameters
    ----------
    stored : pyarrow.Array
        Of the type of `values`; offsets may have another size.
    places : ndarray of int64, shape (n,)
        The position of each stored value.
    values : pyarrow.Array, shape (n,)
        Null or of a flat type.
    same : ndarray of bool, shape (n,)
        Changed in place; rows with False are not compared.
    """
    if not pa.types.is_null(values.type):
        view_of(values).compare(view_of(stored), places, same)


def _offset_width(type_: pa.DataType) -> int:
    """Return the size of the offsets of text or bytes, 0 for other types."""
    if pa.types.is_string(type_) or pa.types.is_binary(type_):
        return 4
    return 8 if pa.types.is_large_string(type_) or pa.types.is_large_binary(type_) else 0
