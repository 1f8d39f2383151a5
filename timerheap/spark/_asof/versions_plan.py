"""As-of joins with a condition on both rows: the newest right row of each key that meets it."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

from timerheap.spark._asof.asof_inputs import AsofArguments, AsofInputs
from timerheap.spark._asof.versions_runner import COUNT, FIRST, LEFTS, RIGHTS, VersionsWork
from timerheap.spark._columns import SIDES
from timerheap.spark._compat import nullable
from timerheap.spark._modes import build
from timerheap.spark._plan.assemble import query_of


def newest_that_meets(
    inputs: AsofInputs, arguments: AsofArguments, condition: str, names: Mapping[str, str]
) -> DataFrame:
    """Return each left row with the newest right row that meets a condition: structs of the names `SIDES`.

    The condition need not be met by right rows that are older than the tolerance.

    condition: in Spark's SQL, on these two structs
    names: what the columns of the right input are called there
    """
    one, two, carriers = inputs.one, inputs.two, inputs.carriers
    rights = [(names[field.name], field) for field in two.rows if field.name in names]
    lefts = StructType([*one.rows, *(StructField(name, IntegerType()) for name in (FIRST, COUNT))])
    work = VersionsWork(
        columns=(
            {name: carriers[0][name] for name in one.rows.names},
            {name: carriers[1][field.name] for name, field in rights},
        ),
        **inputs.of_work(arguments),
    )
    versions = StructType([StructField(name, field.dataType) for name, field in rights])
    result = [StructField(LEFTS, ArrayType(lefts)), StructField(RIGHTS, ArrayType(versions))]
    query = query_of(
        work,
        nullable(StructType(result)),
        one,
        two,
        max_parallelism=arguments.max_parallelism,
        **inputs.of_query(),
    )
    left, right = SIDES
    before = f"slice(`{RIGHTS}`, {left}.`{FIRST}`, {left}.`{COUNT}`)"
    found = f"get(filter({before}, {right} -> {condition}), 0)"
    pairs = F.expr(f"transform(`{LEFTS}`, {left} -> struct({left} AS {left}, {found} AS {right}))")
    joined = build(query, inputs.both()).select(F.explode(pairs).alias("pair")).select("pair.*")
    return joined.where(F.col(right).isNotNull()) if arguments.inner else joined
