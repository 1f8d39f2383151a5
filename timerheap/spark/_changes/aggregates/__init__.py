"""Aggregates of tables that change: what is kept of a group, what is sent, and the results."""
