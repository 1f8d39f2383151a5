"""Compiled modules, built on the C code in ``csrc/``."""
