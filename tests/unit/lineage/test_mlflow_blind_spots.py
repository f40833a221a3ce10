"""Edits that MLflow's dataset digest does not see, and ours does."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import numpy as np
import pyarrow as pa
import pytest

from snapline.lineage.cut import Bucket
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.rows.fingerprint import fingerprint

pytestmark = [
    pytest.mark.mlflow,
    pytest.mark.filterwarnings("ignore:The specified dataset source", "ignore:Starting with pandas"),
]

ROWS = 12_000
START = datetime(2013, 1, 1, tzinfo=UTC)


def ours(table: pa.Table) -> str:
    return fingerprint(table, time="at", key="id", bucket=Bucket.DAY, algorithm=BulkAlgorithm.BLAKE3).digest


def mlflow_of_table(table: pa.Table) -> str:
    import mlflow.data

    return str(mlflow.data.from_pandas(table.to_pandas(), source="here").digest)


def trips() -> pa.Table:
    numbers = np.arange(ROWS)
    hours = [START + timedelta(hours=int(number) % 2000) for number in numbers]
    return pa.table(
        {
            "at": pa.array(hours, pa.timestamp("us", "UTC")),
            "id": numbers,
            "delay": numbers % 97,
            "late": numbers % 2 == 0,
        }
    )


def replaced(table: pa.Table, name: str, values: pa.Array | np.ndarray) -> pa.Table:
    return table.set_column(table.column_names.index(name), name, pa.array(values))


def edit_rows_past_the_sample(table: pa.Table) -> pa.Table:
    delays = table["delay"].to_numpy().copy()
    delays[10_000:] += 1
    return replaced(table, "delay", delays)


def move_every_time(table: pa.Table) -> pa.Table:
    moved = [moment + timedelta(minutes=1) for moment in table["at"].to_pylist()]
    return replaced(table, "at", pa.array(moved, table["at"].type))


def flip_every_flag(table: pa.Table) -> pa.Table:
    return replaced(table, "late", ~table["late"].to_numpy())


@pytest.mark.parametrize("edit", [edit_rows_past_the_sample, move_every_time, flip_every_flag])
def test_an_edit_of_a_table_changes_ours_only(edit: Callable[[pa.Table], pa.Table]):
    before = trips()
    after = edit(before)
    assert mlflow_of_table(after) == mlflow_of_table(before)
    assert ours(after) != ours(before)


def test_an_edit_of_an_array_changes_ours_only():
    import mlflow.data

    before = np.random.default_rng(1).normal(size=(100, 1000))
    after = before.copy()
    after[10:] += 1.0

    def as_table(array: np.ndarray) -> pa.Table:
        columns = {f"c{number:03}": array[:, number] for number in range(array.shape[1])}
        return pa.table({"at": [START] * len(array), "id": np.arange(len(array)), **columns})

    def mlflow_of(array: np.ndarray) -> str:
        return str(mlflow.data.from_numpy(array, source="here").digest)

    assert mlflow_of(after) == mlflow_of(before)
    assert ours(as_table(after)) != ours(as_table(before))


def test_an_edit_that_mlflow_sees_changes_both():
    """The control: within its sample, of a type it reads, MLflow's digest does change."""
    before = trips()
    after = replaced(before, "delay", before["delay"].to_numpy() + 1)
    assert mlflow_of_table(after) != mlflow_of_table(before)
    assert ours(after) != ours(before)
