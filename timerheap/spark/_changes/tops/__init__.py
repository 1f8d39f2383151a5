"""The first rows of each key of a table that changes."""
