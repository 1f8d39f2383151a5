"""The compiled modules, over the C code of ``csrc/``."""
