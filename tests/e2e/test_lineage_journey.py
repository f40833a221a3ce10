"""What data made this model, and is that still true? Asked of the real command line."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from journeys import Snapline


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def test_materialize_records_what_made_it(materialized: Snapline) -> None:
    answer = materialized.ok("materialize", "delays", "--until", "2013-01-04")
    assert answer["version"] == 2
    assert answer["view"] == "delays"
    assert len(answer["snapshots"]) == 1
    log = materialized.ok("log")
    kinds = [entry["event"]["kind"] for entry in log["entries"]]
    assert kinds[0] == "initialized"
    assert kinds.count("model-registered") == 2
    graph = materialized.ok("lineage", "delays/2")
    assert {edge["kind"] for edge in graph["edges"]} == {"materializes", "trained_on", "cut_from"}
    assert materialized("lineage", "models:/delays/2", "--format", "mermaid").out.startswith("flowchart TD")


def test_initialising_twice_changes_nothing(snapline: Snapline) -> None:
    assert snapline.ok("init")["made"] is True
    before = {path: path.read_bytes() for path in snapline.home.rglob("*") if path.is_file()}
    assert snapline.ok("init")["made"] is False
    assert {path: path.read_bytes() for path in snapline.home.rglob("*") if path.is_file()} == before
    assert snapline("init", "--algorithm", "sha256").code == 2


def test_a_late_row_and_a_correction_are_named_by_bucket(materialized: Snapline, source: Path) -> None:
    original = source.read_bytes()
    stat = source.stat()

    def correct_and_append(table: pa.Table) -> pa.Table:
        delays = table["dep_delay"].to_pylist()
        delays[250] = 999.0  # 2013-01-02
        table = table.set_column(3, "dep_delay", pa.array(delays))
        late = table.slice(500, 1).to_pylist()[0]  # 2013-01-03
        late |= {"flight_id": 90_001, "arr_known": datetime(2099, 1, 1, tzinfo=UTC)}
        return pa.concat_tables([table, pa.Table.from_pylist([late], schema=table.schema)])

    rewrite(source, correct_and_append)
    answer = materialized("verify", "delays", "--json")
    assert answer.code == 1
    details = " ".join(detail for finding in answer.json["findings"] for detail in finding["details"])
    assert "2013-01-02: 1 corrected" in details
    assert "2013-01-03: 1 late" in details
    plan = materialized.ok("plan")
    (model,) = plan["models"]
    assert any("in 2 buckets" in cause["message"] for cause in model["causes"])
    assert [step["do"] for step in model["steps"]] == ["materialize"]

    source.write_bytes(original)
    os.utime(source, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert materialized.ok("verify", "delays")["ok"] is True
    assert materialized.ok("plan")["models"][0]["steps"] == []


def test_rows_appended_outside_the_window_leave_the_cut_alone(materialized: Snapline, source: Path) -> None:
    rewrite(source, lambda table: pa.concat_tables([table, table.slice(1500, 3)]))
    assert materialized.ok("verify", "delays")["ok"] is True
    assert materialized.ok("plan")["models"][0]["steps"] == []


def test_a_flipped_byte_is_tampering_and_names_the_tensor(materialized: Snapline) -> None:
    path = next((materialized.home / "weights").rglob("model.safetensors"))
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    stat = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    answer = materialized("verify", "delays", "--json")
    assert answer.code == 5
    assert "weights" in answer.json["findings"][0]["details"][0]
    data[-3] ^= 1
    path.write_bytes(data)
    assert materialized.ok("verify", "delays")["ok"] is True


def test_what_is_gone_is_exit_4(materialized: Snapline, source: Path) -> None:
    source.rename(source.with_suffix(".away"))
    assert materialized("verify", "delays").code == 4
    source.with_suffix(".away").rename(source)
    weights = next((materialized.home / "weights").iterdir())
    weights.rename(materialized.folder / "away")
    assert materialized("verify", "delays").code == 4


def test_apply_materializes_again_when_the_cut_was_restated(materialized: Snapline, source: Path) -> None:
    rewrite(source, lambda table: table.slice(1))
    done = materialized.ok("apply")["done"]
    assert done == [{"step": "materialize", "model": "delays/2"}]
    assert materialized.ok("plan")["models"][0]["steps"] == []


def test_registering_the_same_again_returns_the_version_there_is(
    snapline: Snapline, weights: Callable[[str, int], Path]
) -> None:
    snapline.ok("init")
    first = snapline.ok("register", "base", "--weights", weights("a", 1))
    again = snapline.ok("register", "base", "--weights", weights("b", 1))
    other = snapline.ok("register", "base", "--weights", weights("c", 2))
    assert (first["version"], again["version"], other["version"]) == (1, 1, 2)
    assert first["weights_digest"] == again["weights_digest"] != other["weights_digest"]


def test_eight_parallel_registers_lose_nothing(snapline: Snapline, weights: Callable[[str, int], Path]) -> None:
    snapline.ok("init")
    different = [snapline.start("register", "many", "--weights", weights(f"w{n}", n), "--json") for n in range(8)]
    assert [process.wait(300) for process in different] == [0] * 8
    same = [snapline.start("register", "one", "--weights", weights(f"s{n}", 5), "--json") for n in range(8)]
    assert [process.wait(300) for process in same] == [0] * 8
    events = [entry["event"] for entry in snapline.ok("log", "--limit", "100")["entries"]]
    keys = [event["model"]["key"] for event in events if event["kind"] == "model-registered"]
    assert sorted(key["version"] for key in keys if key["name"] == "many") == list(range(1, 9))
    assert [key for key in keys if key["name"] == "one"] == [{"name": "one", "version": 1}]
    for process in (*different, *same):
        process.stdout.close()
        process.stderr.close()


def test_origins_that_contradict_the_view_are_refused(
    materialized: Snapline, weights: Callable[[str, int], Path]
) -> None:
    folder = weights("w", 3)
    assert materialized("register", "delays", "--weights", folder, "--view", "delays").code == 2
    assert materialized("register", "delays", "--weights", folder, "--snapshot", "flights").code == 2
    assert materialized("register", "x", "--weights", folder, "--view", "nope", "--snapshot", "flights").code == 4
    assert materialized("register", "x", "--weights", folder, "--view", "delays", "--snapshot", "nope").code == 4
    answer = materialized.ok("register", "delays", "--weights", folder, "--view", "delays", "--snapshot", "flights")
    assert answer["version"] == 2


def test_a_failing_trainer_registers_nothing(materialized: Snapline) -> None:
    (materialized.folder / "train.py").write_text("import sys; print('no luck'); sys.exit(3)\n")
    materialized.ok("view", "define", "view.yaml")
    answer = materialized("materialize", "delays", "--json")
    assert answer.code == 6
    assert "no luck" in answer.err
    assert len(materialized.ok("status")["models"]) == 1
    assert list((materialized.home / "work").iterdir()) == []
