"""The windows in flight of a key, which merge, and where their contents are kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from timerheap.state import MapState
from timerheap.windows.assigners import MergingWindowAssigner
from timerheap.windows.window import Window, window_of


class MergingWindowSet:
    """The windows in flight of one key, each with the window under which its contents are kept.

    The constructor reads the state, and `persist` writes it. Flink: ``MergingWindowSet``.
    """

    def __init__(self, assigner: MergingWindowAssigner, state: MapState) -> None:
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
        del self._mapping[window]

    def add_window(
        self, new_window: Window, merge: Callable[[Window, list[Window], Window, list[Window]], object]
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


class _Results(MergingWindowAssigner.MergeCallback):
    def __init__(self, results: dict[Window, list[Window]]) -> None:
        self._results = results

    def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None:
        self._results[merge_result] = list(to_be_merged)
