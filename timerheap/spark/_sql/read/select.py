"""The clauses of one SELECT, as the query has them: what they mean is decided in `rewrite`.

No tree is changed once it is read: what differs is a copy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from sqlglot import exp

from timerheap.spark._sql.read.clauses import EXAMPLE
from timerheap.spark._sql.read.dialect import expect_only, refuse, rename

_READ = {"expressions", "from", "joins", "where", "group", "having", "with", "match"}

Tree = TypeVar("Tree", bound=exp.Expr)


@dataclass(frozen=True)
class SelectParts:
    """One SELECT; the queries inside it are not read yet.

    tree: without MATCH_RECOGNIZE, and without the versions of joined tables
    versions: what FOR SYSTEM_TIME AS OF says of the table of each JOIN
    """

    tree: exp.Select
    match: exp.Expr | None
    versions: tuple[exp.Expr | None, ...] = ()

    @classmethod
    def of(cls, select: exp.Select) -> SelectParts:
        """Read the clauses; raise for those that are not supported."""
        tree, versions = select.copy(), list[exp.Expr | None]()
        hints = tree.args["hint"].expressions if tree.args.get("hint") else []
        if all(one.name.upper() == "LOOKUP" for one in hints):  # how to call a table, which Spark reads
            tree.set("hint", None)
        expect_only(tree, _READ)
        match = tree.args.get("match")
        tree.set("match", None)
        for join in tree.args.get("joins") or []:
            versions.append(join.this.args.get("version"))
            join.this.set("version", None)
        return cls(tree, match, tuple(versions))

    @property
    def views(self) -> list[exp.Expr]:
        """The queries of WITH."""
        with_ = self.tree.args.get("with_")
        return [] if with_ is None else list(with_.expressions)

    @property
    def first(self) -> exp.Expr | None:
        """What FROM names, before any JOIN; None if the SELECT is one row of its own."""
        from_: exp.Expr | None = self.tree.args.get("from_")
        if from_ is None:
            if any(one.is_star for one in self.items):
                refuse("* without FROM", f"write {EXAMPLE}")
            return None
        first: exp.Expr = from_.this
        return first

    @property
    def joins(self) -> list[exp.Join]:
        return self.tree.args.get("joins") or []

    @property
    def where(self) -> list[exp.Expr]:
        """The conditions of WHERE, all of which must be true."""
        return conjuncts(self.tree.args.get("where"))

    @property
    def group(self) -> exp.Expr | None:
        return self.tree.args.get("group")

    @property
    def having(self) -> exp.Expr | None:
        return self.tree.args.get("having")

    @property
    def items(self) -> list[exp.Expr]:
        return self.tree.expressions

    @property
    def overs(self) -> list[exp.Window]:
        """The functions OVER rows."""
        return [one for one in own_nodes(self.tree) if isinstance(one, exp.Window)]

    def with_names(self, names: Mapping[str, str | None]) -> SelectParts:
        """Return the clauses with other names of tables before columns; see `with_tables`."""
        versions = tuple(None if one is None else with_tables(one, names) for one in self.versions)
        return replace(self, tree=with_tables(self.tree, names), versions=versions)


def own_nodes(select: exp.Expr) -> Iterator[exp.Expr]:
    """Yield the nodes of a SELECT without those of the queries inside it, and of calls in FROM."""
    return select.walk(prune=lambda node: node is not select and isinstance(node, (exp.Query, exp.Table)))


def with_tables(node: Tree, names: Mapping[str, str | None]) -> Tree:
    """Return a copy with other names of tables before columns; "" stands for none, and so does None."""
    copy = node.copy()
    for column in own_nodes(copy):
        if isinstance(column, exp.Column) and column.table in names:
            rename(column, names[column.table])
    return copy


def conjuncts(clause: exp.Expr | None) -> list[exp.Expr]:
    """Return the conditions that must all be true, none without a clause."""
    if clause is None:
        return []
    condition = clause.this if isinstance(clause, exp.Where) else clause
    parts = list(condition.flatten()) if isinstance(condition, exp.And) else [condition.unnest()]
    return [each for one in parts for each in _without_or(one)]


def all_comparisons(conditions: list[exp.Expr]) -> list[exp.Expr]:
    """Return what must be true, with BETWEEN as two comparisons: one may be the order of two times."""
    found = []
    for one in conditions:
        if isinstance(one, exp.And):
            found += all_comparisons(conjuncts(one))
        elif isinstance(one, exp.Between) and not one.args.get("symmetric"):
            found.append(exp.GTE(this=one.this.copy(), expression=one.args["low"]))
            found.append(exp.LTE(this=one.this.copy(), expression=one.args["high"]))
        else:
            found.append(one)
    return found


def _without_or(condition: exp.Expr) -> list[exp.Expr]:
    """Return ``NOT x`` and ``NOT y`` for ``NOT (x OR y)`` with an inner query, to be joined by itself."""
    negated = condition.this.unnest() if isinstance(condition, exp.Not) else None
    if negated is None or condition.find(exp.Query) is None:
        return [condition]
    if isinstance(negated, exp.Not):
        return conjuncts(negated.this)
    if not isinstance(negated, exp.Or):
        return [condition]
    return [each for one in negated.flatten() for each in _without_or(exp.Not(this=one.unnest().copy()))]
