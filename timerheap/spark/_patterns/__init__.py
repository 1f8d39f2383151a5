"""Patterns in the rows of a key, which MATCH_RECOGNIZE of `timerheap.spark.sql` finds."""

from timerheap.spark._patterns.match_rows import MatchPlan, MatchRows, Measure
from timerheap.spark._patterns.matcher import Matcher, Register, Rules
from timerheap.spark._patterns.pattern import Pattern, compiled

__all__ = ["MatchPlan", "MatchRows", "Matcher", "Measure", "Pattern", "Register", "Rules", "compiled"]
