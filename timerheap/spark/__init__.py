"""Timers, watermarks and windows inside Spark queries: the only package here that imports pyspark."""
