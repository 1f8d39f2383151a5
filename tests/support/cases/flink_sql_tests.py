"""All of Flink's own tests of SQL that are told anew, but those of tables that change.

``python flink_sql_tests.py`` writes the table of the page.
"""

from __future__ import annotations

from flink_group_windows import GROUP_WINDOWS
from flink_lookups import LOOKUPS
from flink_matches import MATCHES
from flink_overs import OVERS
from flink_rows import OF_ROWS
from flink_tables import write_page
from flink_time_joins import TIME_JOINS
from flink_windows import WINDOWED

__all__ = ["CASES", "PAGE"]

PAGE = "docs/compatibility/flink-sql-tests.md"
CASES = [*OVERS, *MATCHES, *TIME_JOINS, *LOOKUPS, *WINDOWED, *GROUP_WINDOWS, *OF_ROWS]

if __name__ == "__main__":
    write_page(PAGE, CASES)
