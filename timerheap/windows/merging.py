"""Merging of windows, and the place where the contents of merged windows are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol

from timerheap.state import MapState
from timerheap.windows.window import TimeWindow, Window, window_of

_LONG = (1 << 64) - 1


class _Callback(Protocol):
    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None: ...


class _Assigner(Protocol):
    def merge_windows(self, windows: Iterable[Any], callback: Any) -> None: ...


def merge_time_windows(windows: Iterable[TimeWindow], callback: _Callback) -> None:
    """Call ``callback.merge`` for each set of two or more windows that overlap or touch; O(n log n).

    Notes
    -----
    Flink: ``TimeWindow.mergeWindows``.
    """
    together: list[TimeWindow] = []
    cover: TimeWindow | None = None
    for window in [*sorted(windows, key=lambda w: w.start), None]:
        if window is not None and cover is not None and cover.intersects(window):
            cover = cover.cover(window)
            together.append(window)
            continue
        if cover is not None and len(set(together)) > 1:
            callback.merge(_as_java_iterates(together), cover)
        if window is not None:
            cover, together = window, [window]


class MergingWindowSet:
    """The windows in flight of one key, each with the window under which its contents are kept.

    When windows merge, the contents of one of them stay in place, and the contents of the others are added
    to them.

    state: maps each window to the window whose state it uses

    Notes
    -----
    Flink: ``MergingWindowSet``. The constructor reads the set, and `persist` writes it: O(windows).
    """

    def __init__(self, assigner: _Assigner, state: MapState) -> None:
        self._assigner = assigner
        self._state = state
        self._mapping = {window_of(window): window_of(kept) for window, kept in state.items()}
        self._initial = dict(self._mapping)

    def persist(self) -> None:
        """Write the changes since the set was read."""
        for window in self._initial.keys() - self._mapping.keys():
            self._state.remove(window)
        changed = {w: kept for w, kept in self._mapping.items() if self._initial.get(w) != kept}
        if changed:
            self._state.put_all(changed)
        self._initial = dict(self._mapping)

    def get_state_window(self, window: Window) -> Window | None:
        """Return the window under which the contents of `window` are kept, or None if it is not in flight."""
        return self._mapping.get(window)

    def retire_window(self, window: Window) -> None:
        """Remove a window."""
        del self._mapping[window]

    def add_window(
        self,
        new_window: Window,
        merge: Callable[[Window, list[Window], Window, list[Window]], object],
    ) -> Window:
        """Add a window and return the window it has been merged into, or the window itself.

        merge: called after each merge with the result, the windows in flight that it replaces, the window
            whose contents stay in place, and the windows whose contents must be added to them
        """
        results: dict[Window, list[Window]] = {}
        self._assigner.merge_windows([*self._mapping, new_window], _Results(results))
        result_window, merged_new_window = new_window, False
        for result, windows in results.items():
            merged = list(windows)
            if new_window in merged:
                merged_new_window = True
                merged.remove(new_window)
                result_window = result
            kept = self._mapping.get(merged[0]) if merged else None
            if kept is None:
                raise ValueError(
                    f"{self._assigner!r}.merge_windows must merge windows in flight, got {windows}; "
                    f"the windows in flight are {list(self._mapping)}"
                )
            absorbed = [self._mapping.pop(window) for window in merged if window in self._mapping]
            absorbed.remove(kept)
            self._mapping[result] = kept
            if merged != [result]:  # otherwise an existing window covers the new one
                merge(result, merged, kept, absorbed)
        if not results or (result_window == new_window and not merged_new_window):
            self._mapping.setdefault(result_window, result_window)
        return result_window


class _Results:
    def __init__(self, results: dict[Window, list[Window]]) -> None:
        self._results = results

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self._results[merge_result] = list(to_be_merged)


def _as_java_iterates(windows: list[TimeWindow]) -> list[TimeWindow]:
    """Return windows in the iteration order of a ``java.util.HashSet``.

    The contents of the first window stay in place and the others are added to them. The same order as in
    Java therefore results in the same order of elements in a merged window as in Flink.
    """
    buckets = 16
    while len(windows) > buckets * 3 // 4:
        buckets *= 2
    return sorted(dict.fromkeys(windows), key=lambda window: _java_hash(window) & (buckets - 1))


def _java_hash(window: TimeWindow) -> int:
    """Return ``TimeWindow.hashCode()``, which mixes the 64 bits of start + end, as a HashMap spreads it."""
    x = (window.start + window.end) & _LONG
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _LONG
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _LONG
    x = (x ^ (x >> 31)) & 0xFFFFFFFF
    return x ^ (x >> 16)
