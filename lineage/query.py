"""SQL over snapshots, on a database that can see nothing else.

Each question gets its own in-memory DuckDB, which holds the tables it was given and can open no file, load no
extension and read no Python variable. It runs on one thread: sums of floats are then added in one order, so that the
same rows give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from snapline.lineage.errors import DefinitionError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_ROW = "snapline_row"
_LOCKS = (
    "SET TimeZone = 'UTC'",
    "SET temp_directory = ''",
    "SET python_enable_replacements = false",
    "SET autoinstall_known_extensions = false",
    "SET autoload_known_extensions = false",
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)


def run_view(query: str, tables: Mapping[str, pa.Table], order_by: Sequence[str]) -> pa.Table:
    """Return what a SELECT gives over the named tables, in a fixed order.

    Rows are ordered by those of `order_by` that the result has, then by every column from the left, so the order of
    the tables' rows shows only where the query itself asks for it.

    Args:
        query: One SELECT statement.
        tables: The tables it may name.
        order_by: Key columns, in order of weight.

    Raises:
        DefinitionError: It is not one SELECT, or DuckDB refuses it; the message is DuckDB's, with the line.
    """
    with _database(tables, "the query") as database:
        _refuse_statements(database, query)
        answer = database.sql(query)
        names = answer.columns
        keys = [names.index(name) for name in order_by if name in names]
        order = ", ".join(f"#{position + 1}" for position in dict.fromkeys([*keys, *range(len(names))]))
        return answer.order(order).to_arrow_table()


def evaluate(tables: Mapping[str, pa.Table], setup: Sequence[str], questions: Sequence[str]) -> tuple[pa.Table, ...]:
    """Return the answers to several questions of ours over the named tables, asked of one database.

    Args:
        tables: The tables the statements name.
        setup: Statements to run first: the macros and temporary tables that the questions use.
        questions: SELECT statements.

    Raises:
        DefinitionError: DuckDB refuses a statement, or cannot read a table.
    """
    with _database(tables, "the check") as database:
        for statement in setup:
            database.execute(statement)
        return tuple(database.sql(question).to_arrow_table() for question in questions)


def select(query: str, tables: Mapping[str, pa.Table]) -> pa.Table:
    """Return what a SELECT gives over the named tables, in its own order; columns of one name are numbered apart.

    Raises:
        DefinitionError: It is not one SELECT, or DuckDB refuses it; the message is DuckDB's, with the line.
    """
    with _database(tables, "the query") as database:
        _refuse_statements(database, query)
        answer = database.sql(query).to_arrow_table()
    names: list[str] = []
    for name in answer.column_names:
        spellings = (name, *(f"{name}_{number}" for number in range(1, len(names) + 1)))
        names.append(next(spelling for spelling in spellings if spelling not in names))
    return answer.rename_columns(names)


def tables_named(query: str) -> set[str]:
    """Return the names of the tables a query reads.

    Raises:
        DefinitionError: DuckDB cannot parse it.
    """
    with _database({}, "the query") as database:
        return set(database.get_table_names(query))


def matching(table: pa.Table, predicate: str) -> list[bool]:
    """Return, for each row of a table, whether a boolean SQL expression over its columns holds; NULL does not.

    Raises:
        DefinitionError: The expression is not boolean, or DuckDB refuses it.
    """
    from duckdb import ColumnExpression, SQLExpression

    numbered = table.append_column(_ROW, pa.array(range(table.num_rows), pa.int64()))
    with _database({"rows": numbered}, f"the expression {predicate!r}") as database:
        hits = database.table("rows").select(ColumnExpression(_ROW), SQLExpression(predicate).alias("hit"))
        if hits.types[1] != "BOOLEAN":
            raise DefinitionError(
                f"the expression {predicate!r} must be true or false, found {hits.types[1]}",
                hint="Write a comparison, such as carrier = 'UA'.",
            )
        return [bool(hit) for hit in hits.order(_ROW).to_arrow_table().column("hit").to_pylist()]


@contextmanager
def _database(tables: Mapping[str, pa.Table], what: str) -> Iterator[DuckDBPyConnection]:
    """Yield a locked-down database of the tables; DuckDB's complaints become ours."""
    import duckdb

    with duckdb.connect(":memory:", config={"threads": 1}) as database:
        try:
            for name, table in tables.items():
                database.register(name, table)
            for lock in _LOCKS:
                database.execute(lock)
            yield database
        except duckdb.Error as error:
            raise DefinitionError(
                f"{what} cannot be run: {str(error).strip()}", hint="Correct the SQL; it is DuckDB's dialect."
            ) from error


def _refuse_statements(database: DuckDBPyConnection, query: str) -> None:
    from duckdb import StatementType

    kinds = [statement.type for statement in database.extract_statements(query)]
    if kinds != [StatementType.SELECT]:
        found = ", ".join(kind.name for kind in kinds) or "nothing"
        raise DefinitionError(f"expected one SELECT statement, found {found}", hint="Write it as one SELECT.")
