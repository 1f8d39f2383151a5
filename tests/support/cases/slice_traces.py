"""Slice assigners of the traces."""

from typing import Any

from timerheap.tvf import CumulativeSliceAssigner, HoppingSliceAssigner, TumblingSliceAssigner
from timerheap.tvf.slices import SliceAssigner


def assigner(trace: dict[str, Any]) -> SliceAssigner:
    """Return the slice assigner of a trace of TUMBLE, HOP or CUMULATE."""
    where = {"offset": trace["offset"] or 0, "time_zone": trace.get("tz", "UTC")}
    match trace["kind"]:
        case "TUMBLE":
            return TumblingSliceAssigner(trace["size"], **where)
        case "HOP":
            return HoppingSliceAssigner(trace["size"], trace["step"], **where)
        case "CUMULATE":
            return CumulativeSliceAssigner(trace["size"], trace["step"], **where)
    raise NotImplementedError(trace["kind"])
