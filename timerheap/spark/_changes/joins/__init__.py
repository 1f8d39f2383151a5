"""Joins of tables that change: matches by key, and those that a further condition leaves."""
