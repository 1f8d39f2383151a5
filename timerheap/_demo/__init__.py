"""Runnable programs on real data."""
