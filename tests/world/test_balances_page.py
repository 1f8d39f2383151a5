"""The program of docs/recipes/balances.md keeps a table of balances in PostgreSQL."""

from __future__ import annotations

import json
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from postgres import postgres
from pyspark.sql import SparkSession
from sink_child import jdbc_url

import timerheap.spark

pytestmark = pytest.mark.world("jdbc", "kafka")

PAGE = Path(__file__).resolve().parents[2] / "docs/recipes/balances.md"


def fenced(language: str) -> str:
    found = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert found
    return "".join(found)


def versions(draw: random.Random, entry: int) -> list[dict[str, Any]]:
    """Return an entry and what becomes of it."""
    count = draw.choice([1, 1, 2, 4])
    rows = [
        {
            "entry": entry,
            "version": version,
            "account": f"account {draw.randrange(5)}",
            "amount": draw.randrange(-10_000, 10_000) / 100,
            "op": "write",
        }
        for version in range(count)
    ]
    rows[-1]["op"] = draw.choice(["write", "write", "delete"])
    return rows


def balances_of(rows: list[dict[str, Any]]) -> dict[str, tuple[Decimal, int]]:
    """Return what a batch query finds in the newest versions."""
    newest = {row["entry"]: row for row in sorted(rows, key=lambda row: row["version"])}
    found: dict[str, tuple[Decimal, int]] = {}
    for row in newest.values():
        if row["op"] != "delete":
            total, count = found.get(row["account"], (Decimal(0), 0))
            found[row["account"]] = total + Decimal(str(row["amount"])), count + 1
    return found


def test_the_table_has_the_balances(spark: SparkSession, tmp_path: Path) -> None:
    draw = random.Random(5)
    rows = [row for entry in range(60) for row in versions(draw, entry)]
    draw.shuffle(rows)  # old versions come after new ones
    folder = tmp_path / "entries"
    folder.mkdir()
    with postgres() as server:
        with psycopg.connect(server) as connection:
            connection.execute(fenced("sql"))
        program = fenced("python").replace("/data/entries", str(folder))
        program = program.replace("jdbc:postgresql://database/bank", jdbc_url(server))
        program = program.replace('"user": "balances", "password": "..."', '"user": "postgres"')
        program = program.replace("/checkpoints/", f"{tmp_path}/").replace("10 seconds", "0 seconds")
        come: list[dict[str, Any]] = []
        for step in range(3):
            for part in range(2):
                new = rows[len(come) :][: len(rows) // 6 + 1]
                come += new
                draft = tmp_path / "draft"
                draft.write_text("".join(f"{json.dumps(row)}\n" for row in new))
                draft.rename(folder / f"{step}-{part}.json")
            names: dict[str, Any] = {"spark": spark, "timerheap": timerheap}
            exec(program, names)  # each step is a start of its own
            try:
                names["query"].processAllAvailable()
            finally:
                names["query"].stop()
            with psycopg.connect(server) as connection:
                found = connection.execute("SELECT account, balance, entries FROM balances").fetchall()
            assert {account: (balance, count) for account, balance, count in found} == balances_of(come)
    assert len(come) == len(rows)
