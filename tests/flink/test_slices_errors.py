"""Invalid parameters of slice assigners compared with Flink's SliceAssigners."""

from typing import Any

import pytest
from slice_traces import assigner


def test_slice_assigners_raise_where_flinks_do(trace: dict[str, Any]) -> None:
    if trace["error_class"] is None:
        assigner(trace)
        return
    with pytest.raises(ValueError, match="must be") as raised:
        assigner(trace)
    wrong = next(value for value in (trace["offset"], trace["size"], trace["step"]) if value is not None)
    message = str(raised.value).removesuffix(" ms")
    assert message.startswith(("size", "max_size", "slide", "step", "offset"))
    assert message.endswith((f"got {trace['size']}", f"got {trace['step']}", f"got {wrong}"))
