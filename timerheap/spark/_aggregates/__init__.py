"""Aggregates of no window and no feature: which they are, and their accumulators as columns."""
