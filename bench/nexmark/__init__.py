"""Nexmark: 23 queries about an auction, on Spark, on timerheap and on Flink."""
