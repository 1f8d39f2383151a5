"""Which parameters SliceAssigners refuse."""

from typing import Any

import pytest
from slice_traces import assigner


def test_slices_errors(trace: dict[str, Any]) -> None:
    if trace["error_class"] is None:
        assigner(trace)
        return
    with pytest.raises(ValueError, match="must be") as raised:
        assigner(trace)
    wrong = next(value for value in (trace["offset"], trace["size"], trace["step"]) if value is not None)
    said = str(raised.value)
    assert said.startswith(("size", "max_size", "slide", "step", "offset"))
    assert said.endswith((f"got {trace['size']} ms", f"got {trace['step']} ms", f"got {wrong} ms"))
