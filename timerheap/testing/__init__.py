"""Runs process functions without Spark, on the code that runs them on Spark.

It needs the package pyspark, but starts neither a JVM nor a session.
"""

from timerheap.testing.chain_tester import ChainTester
from timerheap.testing.process_tester import PendingTimer, ProcessTester

__all__ = ["ChainTester", "PendingTimer", "ProcessTester"]
