"""A table of PostgreSQL: what its catalog says, and the statement that applies the rows of a micro-batch.

Spark fills a staging table, in a transaction for each task. Then one statement, in one transaction, applies
it, so that the table has all of a micro-batch or nothing. Both go through Spark's JDBC source and sink, which
run on Spark Connect, too: the statement is the first one of a session that reads a constant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import Row

from timerheap.errors import ArgumentValueError
from timerheap.spark._sinks.table_writes import lacking_columns, not_unique

TOKEN, DELETED, IS_NEW = "token", "deleted", "is_new"
"""Columns of a staging table beside those of the images, which have numbers."""

_PART = re.compile(r'"((?:[^"]|"")+)"|([^."]+)')
_TABLE = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern}))?")
_LONGEST = 63


def quoted_table(argument: str, name: str) -> str:
    """Return the quoted name of a table from ``table`` or ``schema.table``, each exactly as it is spelled."""
    parts = [inside.replace('""', '"') or plain for inside, plain in _PART.findall(name)]
    if not _TABLE.fullmatch(name):
        raise ArgumentValueError(
            f"{argument} must be a table or a schema and a table, such as 'public.balances', got {name!r}; "
            "write a name with a dot in double quotes, as in SQL"
        )
    if longest := [part for part in parts if len(part.encode()) > _LONGEST]:
        raise ArgumentValueError(
            f"{argument} must have names of at most {_LONGEST} bytes, as PostgreSQL cuts off the rest, got "
            f"{longest[0]!r}; pass a shorter one"
        )
    return ".".join(map(identifier, parts))


def identifier(name: str) -> str:
    """Return an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Return a string of SQL."""
    return "E'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def catalog_query(table: str) -> str:
    """Return a query of the columns of a table, each with all unique keys of the table as JSON."""
    return f"""
SELECT a.attname::text AS name, format_type(a.atttypid, a.atttypmod) AS type, a.attnotnull AS required, (
    SELECT json_agg(json_build_object(
        'columns', (
            SELECT json_agg(k.attname) FROM pg_attribute k
            WHERE k.attrelid = i.indrelid AND k.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])
        ),
        'nulls_are_equal', coalesce(to_jsonb(i) ->> 'indnullsnotdistinct', 'false')::boolean
    )) FROM pg_index i
    WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indimmediate
        AND i.indpred IS NULL AND i.indexprs IS NULL
)::text AS keys
FROM pg_attribute a
WHERE a.attrelid = to_regclass({literal(table)}) AND a.attnum > 0 AND NOT a.attisdropped"""


def expect_staging(argument: str, table: str, found: Sequence[Row]) -> None:
    """Raise an error if a table, of which `catalog_query` has found this, is there and no staging table."""
    names = {row["name"] for row in found}
    if names and not {TOKEN, DELETED, IS_NEW, "c0"} <= names:
        raise ArgumentValueError(
            f"{argument} must be a table that may be replaced, got {table}, which has columns "
            f"{sorted(names)}; pass a different name"
        )


@dataclass(frozen=True)
class PostgresTable:
    """A table that can be written by a key: it has a unique constraint on it.

    name: quoted
    key: its key columns
    types: of the columns that are written, in the order of those of the staging table
    required: columns that are never null
    takes_null: whether there is at most one row for a key that has a null
    """

    name: str
    key: Sequence[str]
    types: dict[str, str]
    required: frozenset[str]
    takes_null: bool

    @classmethod
    def of_catalog(
        cls, table: str, name: str, key: Sequence[str], wanted: Sequence[str], found: Sequence[Row]
    ) -> PostgresTable:
        """Return the table of which `catalog_query` has found this; check it.

        wanted: the columns of the result
        """
        if not found:
            raise ArgumentValueError(
                f"table must be a table of the database, got {table!r}, which is none; create it, with a "
                f"primary key on {list(key)}"
            )
        types = {row["name"]: row["type"] for row in found}
        if missing := [column for column in wanted if column not in types]:
            raise lacking_columns(table, list(types), missing)
        unique = [one for one in json.loads(found[0]["keys"] or "[]") if set(one["columns"]) == set(key)]
        if not unique:
            raise ArgumentValueError(
                f"table must have a unique constraint on the key, got {table!r} without one on {list(key)}; "
                f"ALTER TABLE {name} ADD PRIMARY KEY ({', '.join(map(identifier, key))})"
            )
        return cls(
            name,
            key,
            {column: types[column] for column in wanted},
            frozenset(row["name"] for row in found if row["required"]),
            any(one["nulls_are_equal"] for one in unique),
        )

    def statement(
        self, staging: str, token: str, count: int, is_sure: bool, may_be_repeated: bool, shown: str
    ) -> str:
        """Return the statement that applies a staging table once; a task that is repeated runs it again.

        staging: quoted, and so are the columns of the images in it, c0 and so on
        token: of the rows that count; others are those of a writer that was given up
        shown: the table as the user has named it
        """
        at = {column: f"c{number}" for number, column in enumerate(self.types)}
        key = [at[column] for column in self.key]
        cast = ", ".join(f"{at[column]}::{type_} AS {at[column]}" for column, type_ in self.types.items())
        written = {identifier(column): number for column, number in at.items() if column not in self.key}
        into = ", ".join(map(identifier, self.types))
        update = ", ".join(f"{column} = excluded.{column}" for column in written)
        quote = f"$timerheap_{token}$"  # which is in no name
        on_conflict = f"UPDATE SET {update}" if update else "NOTHING"
        return f"""DO {quote}
DECLARE
    of_key text;
BEGIN
    LOCK TABLE {staging} IN ACCESS EXCLUSIVE MODE;
    IF obj_description({literal(staging)}::regclass, 'pg_class') = {literal(token)} THEN
        RETURN;  -- an attempt of this task before has applied it
    END IF;
    CREATE TEMPORARY TABLE timerheap_images ON COMMIT DROP AS
        SELECT DISTINCT ON ({", ".join(key)}) {DELETED}, {IS_NEW}, {cast}
        FROM {staging} WHERE {TOKEN} = {literal(token)};
    IF (SELECT count(*) FROM timerheap_images) <> {count} THEN
        RAISE EXCEPTION USING MESSAGE = {literal(self._disturbed(staging, count))};
    END IF;
    ANALYZE timerheap_images;
{self._without_null(at)}{self._without_second(at, written, is_sure, may_be_repeated, shown)}
    DELETE FROM {self.name} old USING timerheap_images new WHERE new.{DELETED} AND {self._same_key(at)};
    INSERT INTO {self.name} ({into})
        SELECT {", ".join(at.values())} FROM timerheap_images WHERE NOT {DELETED}
        ON CONFLICT ({", ".join(map(identifier, self.key))}) DO {on_conflict};
    TRUNCATE {staging};
    COMMENT ON TABLE {staging} IS {literal(token)};
END {quote}"""

    def _disturbed(self, staging: str, count: int) -> str:
        return (
            f"staging must be a table of this query alone, got {staging} without the {count} rows that were "
            "written; pass a different name to each query"
        )

    def _same_key(self, at: dict[str, str]) -> str:
        same = []
        for column in self.key:
            old, new = f"old.{identifier(column)}", f"new.{at[column]}"
            both_null = "" if column in self.required else f" OR ({old} IS NULL AND {new} IS NULL)"
            same.append(f"({old} = {new}{both_null})")
        return " AND ".join(same)

    def _without_null(self, at: dict[str, str]) -> str:
        """Return a check that no key has a null, which the table would take twice."""
        nullable = [column for column in self.key if column not in self.required]
        if self.takes_null or not nullable:
            return ""
        text = (
            f"key must have no null in the table {self.name}, whose unique constraint takes nulls for "
            f"distinct, got null in {list(self.key)}; declare it UNIQUE NULLS NOT DISTINCT"
        )
        is_null = " OR ".join(f"{at[column]} IS NULL" for column in nullable)
        return _raising(f"EXISTS (SELECT FROM timerheap_images WHERE {is_null})", literal(text))

    def _without_second(
        self, at: dict[str, str], written: dict[str, str], is_sure: bool, may_be_repeated: bool, shown: str
    ) -> str:
        """Return a check that no new row has the key of a different row."""
        if is_sure:
            return ""
        differ = [f"old.{name}::text IS DISTINCT FROM new.{number}::text" for name, number in written.items()]
        where = f"new.{IS_NEW}"
        if may_be_repeated:
            where += f" AND ({' OR '.join(differ) or 'false'})"
        before, after = map(literal, not_unique(self.key, shown))
        values = ", ".join(f"{literal(column)}, new.{at[column]}" for column in self.key)
        search = f"""    SELECT json_build_object({values})::text INTO of_key
        FROM timerheap_images new JOIN {self.name} old ON {self._same_key(at)} WHERE {where} LIMIT 1;
"""
        return search + _raising("of_key IS NOT NULL", f"concat({before}, of_key, {after})")


def _raising(condition: str, message: str) -> str:
    return f"""    IF {condition} THEN
        RAISE EXCEPTION USING MESSAGE = {message};
    END IF;
"""
