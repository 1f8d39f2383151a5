"""Runs process functions without Spark, on the code that runs them on Spark.

It needs the package pyspark, but starts neither a JVM nor a session.
"""

from timerheap.testing.process_tester import PendingTimer, ProcessTester
from timerheap.testing.query_operator import QueryOperator, QueryResults, QueryRows
from timerheap.testing.query_tester import QueryTester

__all__ = ["PendingTimer", "ProcessTester", "QueryOperator", "QueryResults", "QueryRows", "QueryTester"]
