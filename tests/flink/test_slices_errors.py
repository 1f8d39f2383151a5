"""Invalid parameters of slice assigners compared with Flink's SliceAssigners."""

from typing import Any

import pytest
from slice_traces import assigner


def replay(trace: dict[str, Any]) -> None:
    any_size = trace["kind"] == "HOP" and 0 < trace["step"] < trace["size"]  # as in Flink's GROUP BY HOP
    if trace["error_class"] is None or any_size:
        assigner(trace)
        return
    with pytest.raises(ValueError, match="must be") as raised:
        assigner(trace)
    message = str(raised.value)
    assert message.startswith(("size", "max_size", "slide", "step", "offset"))
    given = trace["offset"], trace["size"], trace["step"]
    assert any(f"got {value}" in message for value in given if value is not None)


def test_slice_assigners_raise_where_flinks_do(traces: Any) -> None:
    traces.replay(replay)
