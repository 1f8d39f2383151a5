"""Statements of sql() over tables that change, which DuckDB understands, too, and such tables at random."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

__all__ = ["STATEMENTS", "TABLES", "Tables"]

TABLES = {
    "orders": "id bigint, k string, v bigint, price double",
    "customers": "cid bigint, k string, city string, level bigint",
    "payments": "pid bigint, id bigint, amount bigint, note string",
}
"""The columns of the tables, of which the first is the key. Payments only grow."""

_RANKED = "SELECT *, {rank}() OVER (PARTITION BY {by} ORDER BY {order}) AS rn FROM {of}"


def ranked(of: str, by: str, order: str, rank: str = "ROW_NUMBER") -> str:
    return "(" + _RANKED.format(of=of, by=by, order=order, rank=rank) + ")"


_TOTALS = "(SELECT k, COUNT(*) AS n, SUM(v) AS total FROM orders GROUP BY k)"

STATEMENTS: dict[str, str] = {
    # Projections, filters and unions.
    "select": "SELECT id, v * 2 AS twice, k FROM orders WHERE v > 2",
    "union all": "SELECT id, k FROM orders UNION ALL SELECT cid, city FROM customers WHERE level > 1",
    "union all of rows": "SELECT id, amount FROM payments UNION ALL SELECT pid, amount FROM payments",
    "union": "SELECT k FROM orders UNION SELECT k FROM customers",
    "intersect": "SELECT k FROM orders INTERSECT SELECT k FROM customers",
    "intersect all": "SELECT k FROM orders INTERSECT ALL SELECT k FROM customers",
    "except": "SELECT k FROM orders EXCEPT SELECT k FROM customers",
    "except all": "SELECT k FROM orders EXCEPT ALL SELECT k FROM customers",
    "distinct": "SELECT DISTINCT k, v FROM orders",
    "distinct of rows": "SELECT DISTINCT note FROM payments",
    "distinct of aggregates": f"SELECT DISTINCT n FROM {_TOTALS}",
    # Groups.
    "count": "SELECT k, COUNT(*) AS n FROM orders GROUP BY k",
    "count of rows": "SELECT id, COUNT(*) AS n, SUM(amount) AS total FROM payments GROUP BY id",
    "aggregates": (
        "SELECT k, COUNT(v) AS n, SUM(v) AS total, MIN(v) AS low, MAX(v) AS high, AVG(v) AS mean, "
        "MIN(price) AS low_price, MAX(k) AS name FROM orders GROUP BY k"
    ),
    "of all rows": "SELECT COUNT(*) AS n, SUM(v) AS total, MAX(id) AS last FROM orders HAVING COUNT(*) > 0",
    "expressions of aggregates": (
        "SELECT k, COUNT(*) * 2 AS twice, CASE WHEN COUNT(*) > 2 THEN 'many' ELSE k END AS how_many, "
        "SUM(v) + COALESCE(MAX(v), 0) AS total FROM orders GROUP BY k"
    ),
    "keys by expression": (
        "SELECT v % 3 AS third, COUNT(*) AS n, v % 3 + 1 AS more FROM orders WHERE k IS NOT NULL "
        "GROUP BY v % 3"
    ),
    "keys that are not selected": "SELECT COUNT(*) AS n, MAX(v) AS high FROM orders GROUP BY k, v % 2",
    "having": "SELECT k, SUM(v) AS total FROM orders GROUP BY k HAVING COUNT(*) > 1 AND SUM(v) > 3",
    "having alone": "SELECT k FROM orders GROUP BY k HAVING MAX(v) > 4",
    "where and having": "SELECT k, COUNT(*) AS n FROM orders WHERE v > 1 GROUP BY k HAVING COUNT(*) < 4",
    "count distinct": "SELECT k, COUNT(DISTINCT v) AS n, COUNT(*) AS every FROM orders GROUP BY k",
    "count distinct of "
    "all": "SELECT COUNT(DISTINCT k) AS n, COUNT(DISTINCT v) AS vs FROM orders HAVING COUNT(*) > 0",
    "filter": (
        "SELECT k, COUNT(*) FILTER (WHERE v > 2) AS many, SUM(v) FILTER (WHERE id % 2 = 0) AS even, "
        "COUNT(DISTINCT v) FILTER (WHERE v > 1) AS n FROM orders GROUP BY k"
    ),
    "grouping sets": "SELECT k, v, COUNT(*) AS n FROM orders GROUP BY GROUPING SETS ((k), (v), (k, v))",
    "cube": "SELECT city, level, COUNT(*) AS n, GROUPING(city) AS g FROM customers GROUP BY CUBE "
    "(city, level) HAVING COUNT(*) > 0",
    "first and last": (
        "SELECT k, MIN_BY(v, id) FILTER (WHERE v IS NOT NULL) AS first, MAX_BY(v, id) FILTER (WHERE "
        "v > 1) AS last FROM orders "
        "GROUP BY k"
    ),
    "variance": "SELECT k, VAR_SAMP(v) AS a, STDDEV_POP(v) AS b FROM orders GROUP BY k",
    # Aggregates of aggregates.
    "counts of counts": f"SELECT n, COUNT(*) AS keys, MAX(k) AS last FROM {_TOTALS} GROUP BY n",
    "largest total": f"SELECT MAX(total) AS high, COUNT(*) AS n FROM {_TOTALS} HAVING COUNT(*) > 0",
    "aggregates three deep": (
        f"SELECT m, COUNT(*) AS times FROM (SELECT n, MAX(total) AS m FROM {_TOTALS} GROUP BY n) GROUP BY m"
    ),
    "aggregate of a union": (
        "SELECT k, COUNT(*) AS n FROM (SELECT k FROM orders UNION ALL SELECT k FROM customers) GROUP BY k"
    ),
    "with": (
        "WITH a AS (SELECT k, SUM(v) AS total FROM orders GROUP BY k), b AS (SELECT * FROM a WHERE "
        "total > 2) "
        "SELECT COUNT(*) AS n, SUM(total) AS s FROM b HAVING COUNT(*) > 0"
    ),
    # The first rows of each key.
    "top 2": f"SELECT k, id, v FROM {ranked('orders', 'k', 'v DESC, id')} WHERE rn <= 2",
    "top 2 with numbers": f"SELECT * FROM {ranked('orders', 'k', 'v DESC NULLS LAST, id')} WHERE rn <= 2",
    "top 3 of all": (
        "SELECT id, v, rn FROM (SELECT *, ROW_NUMBER() OVER (ORDER BY v DESC NULLS LAST, id) AS rn "
        "FROM orders) "
        "WHERE rn < 4"
    ),
    "rank": f"SELECT k, id, rn FROM {ranked('orders', 'k', 'v NULLS FIRST', 'RANK')} WHERE rn <= 2",
    "dense rank": f"SELECT k, id FROM {ranked('orders', 'k', 'v DESC NULLS LAST', 'DENSE_RANK')} "
    f"WHERE rn <= 2",
    "the last row": f"SELECT k, id, v FROM {ranked('orders', 'k', 'id DESC')} WHERE rn = 1",
    "the last payment": f"SELECT id, pid, amount FROM {ranked('payments', 'id', 'pid DESC')} WHERE rn = 1",
    "the second row": f"SELECT k, id FROM {ranked('orders', 'k', 'id DESC')} WHERE rn = 2",
    "qualify": (
        "SELECT k, id, price FROM orders QUALIFY ROW_NUMBER() OVER (PARTITION BY k ORDER BY price DESC NULLS "
        "LAST, id) <= 2"
    ),
    "top by expressions": (
        f"SELECT id, v FROM {ranked('orders', 'v % 2', 'COALESCE(v, 0) + id % 3 DESC, id')} WHERE rn <= 2"
    ),
    "order and limit": "SELECT id, k, v FROM orders ORDER BY v DESC NULLS LAST, id LIMIT 3",
    "top of aggregates": (
        f"SELECT k, total, rn FROM (SELECT *, ROW_NUMBER() OVER (ORDER BY total DESC NULLS LAST, k "
        f"NULLS LAST) "
        f"AS rn FROM {_TOTALS}) WHERE rn <= 2"
    ),
    "top of groups": (
        "SELECT k, COUNT(*) AS n FROM orders GROUP BY k QUALIFY ROW_NUMBER() OVER (ORDER BY COUNT(*) DESC, k "
        "NULLS FIRST) <= 2"
    ),
    "aggregate of a top": (
        f"SELECT COUNT(*) AS n, SUM(v) AS s FROM (SELECT k, v FROM {ranked('orders', 'k', 'v DESC, id')} "
        "WHERE rn <= 2) HAVING COUNT(*) > 0"
    ),
    # Joins.
    "join": "SELECT o.id, o.v, c.city FROM orders o JOIN customers c ON o.k = c.k",
    "join of columns with no "
    "table": "SELECT id, city FROM orders JOIN customers ON orders.k = customers.k AND v > level",
    "join by an expression": (
        "SELECT o.id, c.cid FROM orders o JOIN customers c ON o.v % 3 = c.level AND o.id <> c.cid "
        "WHERE o.v > 1"
    ),
    "left join": "SELECT o.id, c.cid, c.city FROM orders o LEFT JOIN customers c ON o.k = c.k",
    "left join with a condition": (
        "SELECT o.id, c.cid FROM orders o LEFT JOIN customers c ON o.k = c.k AND o.v > c.level AND "
        "c.level > 1"
    ),
    "right join": "SELECT o.id, c.cid FROM orders o RIGHT JOIN customers c ON o.k = c.k AND o.v > 2",
    "full join": "SELECT o.id, o.k, c.cid, c.k AS ck FROM orders o FULL JOIN customers c ON o.k = c.k",
    "full join with a condition": (
        "SELECT o.id, c.cid FROM orders o FULL OUTER JOIN customers c ON o.k = c.k AND o.v = c.level"
    ),
    "null is null": "SELECT o.id, c.cid FROM orders o JOIN customers c ON o.k IS NOT DISTINCT FROM c.k",
    "cross join": "SELECT o.id, c.cid FROM orders o CROSS JOIN customers c WHERE o.v > 5 AND c.level > 2",
    "comma join": "SELECT o.id, c.cid FROM orders o, customers c WHERE o.k = c.k AND o.v > 1",
    "join with rows": "SELECT o.id, o.k, p.pid, p.amount FROM orders o JOIN payments p ON o.id = p.id",
    "join of itself": "SELECT a.id, b.id AS other FROM orders a JOIN orders b ON a.k = b.k AND a.id < b.id",
    "every column": "SELECT * FROM orders o JOIN payments p ON o.id = p.id",
    "chain": (
        "SELECT o.id, c.city, p.amount FROM orders o JOIN customers c ON o.k = c.k JOIN payments p "
        "ON o.id = p.id"
    ),
    "chain of left joins": (
        "SELECT o.id, c.cid, p.pid FROM orders o LEFT JOIN customers c ON o.k = c.k LEFT JOIN payments p "
        "ON o.id = p.id AND p.amount > c.level"
    ),
    "chain of three": (
        "SELECT a.id, b.cid, p.pid, d.n FROM orders a, customers b, payments p, (SELECT k, COUNT(*) "
        "AS n FROM "
        "customers GROUP BY k) d WHERE a.k = b.k AND p.id = a.id AND d.k = b.k"
    ),
    "join of aggregates": (
        f"SELECT a.k, a.total, b.n FROM {_TOTALS} a FULL JOIN (SELECT k, COUNT(*) AS n FROM "
        f"customers GROUP BY k) "
        "b ON a.k = b.k"
    ),
    "aggregate of a join": (
        "SELECT c.city, COUNT(*) AS n, SUM(o.v) AS total FROM orders o JOIN customers c ON o.k = "
        "c.k GROUP BY "
        "c.city"
    ),
    "top of a join": (
        "SELECT city, id, v FROM (SELECT c.city, o.id, o.v, c.cid, ROW_NUMBER() OVER (PARTITION BY c.city "
        "ORDER BY o.v DESC NULLS LAST, o.id, c.cid) AS rn FROM orders o JOIN customers c ON o.k = c.k) "
        "WHERE rn <= 2"
    ),
    "join with the largest": (
        "SELECT o.id, o.k, o.v FROM orders o JOIN (SELECT k, MAX(v) AS high FROM orders GROUP BY k) m "
        "ON o.k = m.k AND o.v = m.high"
    ),
    # Semi-joins and anti-joins.
    "in": "SELECT id, k FROM orders WHERE k IN (SELECT k FROM customers WHERE level > 1)",
    "not in": "SELECT id, v FROM orders WHERE v NOT IN (SELECT level FROM customers)",
    "not in of values": "SELECT id, v FROM orders WHERE v NOT IN (SELECT level FROM customers WHERE "
    "level IS NOT NULL)",
    "in of pairs": "SELECT id FROM orders WHERE (k, v) IN (SELECT k, level FROM customers)",
    "in of aggregates": "SELECT id, v FROM orders WHERE v IN (SELECT MAX(level) FROM customers "
    "GROUP BY city)",
    "exists": (
        "SELECT o.id FROM orders o WHERE EXISTS (SELECT * FROM customers c WHERE c.k = o.k AND c.level < o.v)"
    ),
    "not exists": "SELECT o.id FROM orders o WHERE o.v > 1 AND NOT EXISTS (SELECT 1 FROM payments p "
    "WHERE p.id = o.id)",
    "correlated in": (
        "SELECT o.id FROM orders o WHERE o.v NOT IN (SELECT c.level FROM customers c WHERE c.k = o.k)"
    ),
    "both": (
        "SELECT id FROM orders o WHERE k IN (SELECT k FROM customers) AND EXISTS (SELECT 1 FROM "
        "payments p WHERE p.id = o.id)"
    ),
    "exists at all": "SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM customers WHERE level > 3)",
    "aggregate of a semi-join": (
        "SELECT k, COUNT(*) AS n FROM orders WHERE k IN (SELECT k FROM customers) GROUP BY k"
    ),
    "compared with one row": "SELECT id, v FROM orders WHERE v > (SELECT AVG(level) FROM customers)",
    "everything": (
        "SELECT city, n, rn FROM (SELECT city, n, ROW_NUMBER() OVER (ORDER BY n DESC, city NULLS LAST) AS rn "
        "FROM (SELECT c.city, COUNT(*) AS n FROM (SELECT k, id FROM orders WHERE v NOT IN (SELECT level FROM "
        "customers WHERE level > 2)) o LEFT JOIN (SELECT k, city FROM "
        f"{ranked('customers', 'k', 'cid DESC')} WHERE rn = 1) c ON o.k = c.k GROUP BY c.city)) WHERE rn <= 3"
    ),
}


class Tables:
    """Tables that change at random: the rows that are there, and the changes that lead to them."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.live: dict[str, dict[int, tuple[Any, ...]]] = {name: {} for name in TABLES}
        self._next = 0

    def step(self, size: int) -> dict[str, list[tuple[Any, ...]]]:
        """Change the tables; return the changes, each a row with its change type, in any order."""
        changes: dict[str, list[tuple[Any, ...]]] = {}
        for table in TABLES:
            changes[table] = [change for _ in range(size) for change in self._change(table)]
            self._draw.shuffle(changes[table])
        return changes

    def _change(self, table: str) -> Iterator[tuple[Any, ...]]:
        live, draw = self.live[table], self._draw
        keys = list(live)
        what = (
            "insert"
            if table == "payments" or not keys
            else draw.choice(["insert", "update", "update", "delete"])
        )
        if what == "insert":
            self._next += 1
            live[self._next] = self._row(table, self._next)
            yield (*live[self._next], "insert")
            return
        key = draw.choice(keys)
        before = live.pop(key)
        if what == "delete":
            yield (*before, "delete")
            return
        live[key] = self._row(table, key)
        yield (*before, "update_preimage")
        yield (*live[key], "update_postimage")

    def _row(self, table: str, key: int) -> tuple[Any, ...]:
        draw = self._draw
        k = draw.choice(["a", "b", "c", "d", None])
        if table == "orders":
            return key, k, draw.choice([None, *range(7)]), draw.choice([None, 0.5, 1.25, 2.0, -3.75])
        if table == "customers":
            return key, k, draw.choice(["x", "y", None]), draw.choice([None, 0, 1, 2, 3])
        orders = [*self.live["orders"], key]
        return key, draw.choice([*orders, None]), draw.randrange(5), draw.choice(["p", "q", None])
