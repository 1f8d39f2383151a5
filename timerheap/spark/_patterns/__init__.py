"""Patterns in the rows of a key, which MATCH_RECOGNIZE of `timerheap.spark.sql` finds."""

from timerheap._native._core import Matcher
from timerheap.spark._patterns.conditions import OPERATORS, condition
from timerheap.spark._patterns.match_plan import MatchPlan
from timerheap.spark._patterns.match_rules import Register, Rules
from timerheap.spark._patterns.match_runner import MatchRows
from timerheap.spark._patterns.measures import Measure
from timerheap.spark._patterns.pattern import Pattern, compiled
from timerheap.spark._patterns.spark_numbers import DoesNotFitError
from timerheap.spark._patterns.term_types import typed

__all__ = [
    "OPERATORS",
    "DoesNotFitError",
    "MatchPlan",
    "MatchRows",
    "Matcher",
    "Measure",
    "Pattern",
    "Register",
    "Rules",
    "compiled",
    "condition",
    "typed",
]
