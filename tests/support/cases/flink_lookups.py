"""What Flink's own tests of lookup joins expect, told anew: LookupJoinITCase."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flink_tables import Case, Rows, table

__all__ = ["LOOKUPS"]

STREAM = ("stream",)
SOURCE = table(
    "id bigint, len int, content string",
    *[(1, 12, "ida"), (2, 15, "hello"), (3, 15, "finn"), (8, 11, "world"), (9, 12, "bye!")],
)
HOLES = table(
    "id bigint, len int, content string",
    *[(None, 15, "hello"), (3, 15, "finn"), (None, 11, "world"), (9, 12, "bye!")],
)
USERS: Rows = [(11, 1, "ida"), (22, 2, "jo"), (33, 3, "finn"), (11, 4, "bye"), (11, 5, "bye")]
SOME: Rows = [(11, 1, "ida"), (22, None, "hello"), (33, 3, "finn"), (44, None, "world")]
LOOKED = {
    "src": SOURCE,
    "holes": HOLES,
    "users": table("age int, id bigint, name string", *USERS),
    "some": table("age int, id bigint, name string", *SOME),
    "older": table("age int, id bigint, name string, nominal int", *((*row, row[0] + 1) for row in USERS)),
}


def _lookups() -> list[Case]:
    name = "LookupJoinITCase.test"

    def looked(
        test: str,
        on: str,
        where: Callable[..., bool],
        keep: bool = False,
        left: str = "src",
        right: str = "users",
        after: str = "",
        hint: str = "",
        note: str = "",
    ) -> Case:
        word = "LEFT JOIN" if keep else "JOIN"
        query = (
            f"SELECT {hint}T.id, T.len, T.content, D.name, D.age FROM {left} AS T {word} {right} "
            "FOR SYSTEM_TIME AS OF "
        )
        query += f"T.proctime AS D ON {on}{after}"
        rows: Rows = []
        for t in LOOKED[left][1]:
            pairs = [d for d in LOOKED[right][1] if where(t, d)]
            rows += [(*t, d[2], d[0]) for d in pairs] or ([(*t, None, None)] if keep else [])
        tables = {one: LOOKED[one] for one in (left, right)}
        return Case(name + test, tables, query, rows, note, still=(right,), runs=STREAM)

    def same(t: tuple[Any, ...], d: tuple[Any, ...]) -> bool:
        return t[0] is not None and t[0] == d[1]

    def both(t: tuple[Any, ...], d: tuple[Any, ...]) -> bool:
        return same(t, d) and t[2] == d[2]

    ids, names = "T.id = D.id", "T.content = D.name"
    retry = (
        "/*+ LOOKUP('table'='D', 'retry-predicate'='lookup_miss', "
        "'retry-strategy'='fixed_delay', 'fixed-delay'='5 ms', 'max-attempts'='2') */ "
    )
    shuffle = "/*+ LOOKUP('table'='D', 'shuffle'='true') */ "
    groups = "WITH t1 AS (SELECT MAX(id) AS id FROM src AS T GROUP BY len) "
    changing = "a lookup join of rows that change: join them with the table, whose pairs then are corrected"
    cases = [
        looked("JoinTemporalTable", ids, same),
        looked(
            "JoinTemporalTableWithUdfFilter",
            ids,
            lambda t, d: same(t, d) and t[0] > 1,
            after=" WHERE add(T.id, D.id) > 3 AND add(T.id, 2) > 3",
        ),
        looked(
            "JoinTemporalTableWithUdfEqualFilter",
            ids,
            lambda t, d: same(t, d) and d[2] == "jo",
            after=" WHERE CONCAT('x-', D.name) = 'x-jo'",
        ),
        looked("JoinTemporalTableOnConstantKey", "D.id = 1", lambda t, d: d[1] == 1),
        looked("JoinTemporalTableOnNullableKey", ids, same, left="holes"),
        looked(
            "JoinTemporalTableWithPushDown", f"{ids} AND D.age > 20", lambda t, d: same(t, d) and d[0] > 20
        ),
        looked(
            "JoinTemporalTableWithNonEqualFilter",
            ids,
            lambda t, d: same(t, d) and t[1] <= d[0],
            after=" WHERE T.len <= D.age",
        ),
        looked("JoinTemporalTableOnMultiFields", f"{ids} AND {names}", both),
        looked("JoinTemporalTableOnMultiKeyFields", f"{names} AND {ids}", both),
        Case(
            f"{name}JoinTemporalTableOnMultiKeyFields2",
            {"src": SOURCE, "users": LOOKED["users"]},
            "SELECT t1.id, t1.len, D.name FROM (SELECT proctime, content, id, len FROM src) t1 JOIN "
            "users FOR SYSTEM_TIME AS OF "
            "t1.proctime AS D ON t1.content = D.name AND t1.id = D.id",
            [(1, 12, "ida"), (3, 15, "finn")],
            still=("users",),
            runs=STREAM,
        ),
        looked(
            "JoinTemporalTableOnMultiKeyFieldsWithConstantKey",
            f"{names} AND 3 = D.id",
            lambda t, d: t[2] == d[2] and d[1] == 3,
        ),
        looked(
            "JoinTemporalTableOnMultiKeyFieldsWithStringConstantKey",
            f"D.name = 'finn' AND {ids}",
            lambda t, d: same(t, d) and d[2] == "finn",
        ),
        looked("JoinTemporalTableOnMultiConstantKey", "D.name = 'finn' AND 3 = D.id", lambda t, d: d[1] == 3),
        looked("LeftJoinTemporalTable", ids, same, keep=True),
        looked(
            "LeftJoinTemporalTableWithPreFilter",
            f"{ids} AND T.len < 15",
            lambda t, d: same(t, d) and t[1] < 15,
            keep=True,
        ),
        looked(
            "LeftJoinTemporalTableWithUdfPreFilter",
            f"{ids} AND add(T.id, 2) > 4",
            lambda t, d: same(t, d) and t[0] > 2,
            keep=True,
        ),
        looked("LeftJoinTemporalTableOnNullableKey", ids, same, keep=True, left="holes"),
        looked("LeftJoinTemporalTableOnMultKeyFields", f"{ids} AND {names}", both, keep=True),
        looked(
            "JoinTemporalTableOnMultiKeyFieldsWithNullData",
            f"{names} AND {ids}",
            both,
            left="holes",
            right="some",
        ),
        looked(
            "LeftJoinTemporalTableOnMultiKeyFieldsWithNullData",
            f"{names} AND {ids}",
            both,
            keep=True,
            left="holes",
            right="some",
        ),
        looked(
            "JoinTemporalTableOnNullConstantKey",
            "D.id = NULL",
            lambda t, d: False,
            left="holes",
            right="some",
        ),
        looked(
            "JoinTemporalTableOnMultiKeyFieldsWithNullConstantKey",
            f"{names} AND NULL = D.id",
            lambda t, d: False,
        ),
        looked(
            "JoinTemporalTableOnMultiKeyFieldsWithUDF",
            "T.id = D.id + 4 AND T.content = CONCAT(D.name, '!') AND D.age = 11",
            lambda t, d: t[0] == d[1] + 4 and t[2] == d[2] + "!",
        ),
        looked("JoinTemporalTableWithComputedColumn", f"{ids} AND D.nominal > 0", same, right="older"),
        looked(
            "JoinTemporalTableWithComputedColumnAndPushDown",
            f"{ids} AND D.nominal > 12",
            lambda t, d: same(t, d) and d[3] > 12,
            right="older",
        ),
        looked(
            "CurrentDateInJoinCondition",
            ids,
            lambda t, d: False,
            after=" WHERE CONCAT(D.name, '') >= CONCAT('zz', CAST(CURRENT_DATE AS VARCHAR))",
        ),
        *(
            looked(f"JoinTemporalTable{test}", ids, same, hint=retry)
            for test in (
                "WithRetry",
                "WithLookupThresholdWithInsufficientRetry",
                "WithLookupThresholdWithSufficientRetry",
                "WithLookupThresholdWithLargerRetry",
            )
        ),
        looked("JoinTemporalTableWithLookupHintEnableShuffleOnNormalSource", ids, same, hint=shuffle),
        *(
            looked(
                f"JoinTemporalTableWithLookupHintEnable{test}",
                f"{ids} AND D.name = 'finn' AND D.age = 33",
                lambda t, d: same(t, d) and d[1] == 3,
                hint=shuffle,
            )
            for test in ("Shuffle", "NonDeterministicShuffle", "ShuffleEmptyPartitioner", "ShuffleWithoutUDF")
        ),
        looked(
            "JoinTemporalTableWithLookupHintEnableShuffleOnAllConstantLookupKeys",
            "D.id = 3 AND D.name = 'finn' AND D.age = 33",
            lambda t, d: d[1] == 3,
            hint=shuffle,
        ),
        *(
            Case(
                f"{name}{test}",
                {"src": SOURCE, "users": LOOKED["users"]},
                f"{groups}SELECT t1.id, D.name, D.age FROM t1 LEFT JOIN users FOR SYSTEM_TIME AS OF "
                f"t1.proctime AS D ON {on}",
                None,
                changing,
                "an as-of join of a nested SELECT, whose rows change, is not supported",
                still=("users",),
                runs=STREAM,
            )
            for test, on in {
                "AggAndLeftJoinWithTryResolveMode": "t1.id = D.id",
                "AggAndLeftJoinAllConstantKeyWithTryResolveMode": "D.id = 3",
                "AggAndJoinAllConstantKeyWithTryResolveMode": "D.id = 3",
            }.items()
        ),
        Case(
            f"{name}JoinTemporalTableWithLatestData",
            {
                "src": SOURCE,
                "users": table(
                    "num bigint, len int, content string", (3, 15, "finn"), (8, 11, "world"), (9, 12, "bye!")
                ),
            },
            "SELECT users.* FROM src JOIN users FOR SYSTEM_TIME AS OF src.proctime ON src.len = users.len",
            [(3, 15, "finn"), (3, 15, "finn"), (8, 11, "world"), (9, 12, "bye!"), (9, 12, "bye!")],
            still=("users",),
            runs=STREAM,
        ),
    ]
    return cases


LOOKUPS = _lookups()
