"""Structures whose contents lie in a borrowed memory: blocks, growing columns, tables by id."""
