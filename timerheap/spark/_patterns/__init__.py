"""Patterns in the rows of a key, which MATCH_RECOGNIZE of `timerheap.spark.sql` finds."""

from timerheap._native._core import Matcher
from timerheap.spark._patterns.match_rows import MatchPlan, MatchRows
from timerheap.spark._patterns.matcher import Register, Rules
from timerheap.spark._patterns.measures import Measure
from timerheap.spark._patterns.pattern import Pattern, compiled

__all__ = ["MatchPlan", "MatchRows", "Matcher", "Measure", "Pattern", "Register", "Rules", "compiled"]
