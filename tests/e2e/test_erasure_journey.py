"""Somebody asks to be forgotten: from the request to the certificate, as a person works through it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from journeys import TARGETS, Snapline, flights


def listed(folder: Path, *keys: object, column: str = "flight_id") -> Path:
    path = folder / "keys.csv"
    path.write_text(f"{column}\n" + "".join(f"{key}\n" for key in keys))
    return path


def only(snapline: Snapline) -> Any:
    (erasure,) = snapline.ok("erasures")["erasures"]
    return erasure


def entries(snapline: Snapline) -> int:
    return len(snapline.ok("log", "--limit", "1000")["entries"])


def test_a_request_shuts_gates_says_what_to_do_and_closes_with_a_certificate(
    materialized: Snapline, source: Path
) -> None:
    (materialized.home / "targets.yaml").write_text(TARGETS)
    keys = listed(materialized.folder, 7, 11, 999_999)
    asked = materialized.ok("erase", "--snapshot", "flights", "--keys", keys, "--reason", "art. 17")
    assert (asked["recorded"], asked["state"], asked["keys"], asked["absent"]) == (True, "open", 3, 1)
    assert asked["absent_sample"] == ["999999"]
    assert (asked["searched"], asked["index"]["rows"]) == (2, 2 * 960)
    assert 0 < asked["index"]["bytes"] < 20 * 2 * 960
    (affected,) = asked["affected"]
    assert (affected["model"], affected["state"]) == ("delays/1", "pending")
    assert affected["path"][0].startswith("delays/1 trained_on flights@")
    assert [step["command"] for step in asked["plan"]] == ["snapline materialize delays"]
    assert "ERASURE_PENDING" in materialized("status", "--json").out
    shut = materialized("gate", "delays", "--json")
    assert (shut.code, any(asked["erasure"][:12] in reason for reason in shut.json["reasons"])) == (1, True)

    materialized.ok("materialize", "delays")
    found = only(materialized)
    (affected,) = found["affected"]
    assert (found["state"], affected["state"], affected["by"]) == ("closed", "retrained", "delays/2")
    assert found["plan"] == []
    assert found["certificate"].startswith("blake3-object-v1:")
    assert float(found["over_report"]) < 1e-15
    shut = materialized("gate", "delays/1", "--json")
    assert (shut.code, any("delays/2 was made without them" in reason for reason in shut.json["reasons"])) == (1, True)
    taken = materialized.ok("snapshot", "take", "flights")
    assert taken["rows"] == 958

    (held,) = found["retained"]
    assert [commit["newest"] for commit in held["held"]] == [True]
    rows = flights()
    pq.write_table(rows.filter(pc.invert(pc.is_in(rows["flight_id"], pa.array([7, 11])))), source)
    assert only(materialized)["retained"][0]["held"] == []
    assert materialized.ok("snapshot", "take", "flights")["digest"] == taken["digest"]


def test_a_request_that_is_wrong_or_repeated_records_nothing(materialized: Snapline) -> None:
    before = entries(materialized)
    wrong = [
        (["--keys", listed(materialized.folder, 7, "x")], "line 3: 'x' is no int64", 2),
        (["--keys", materialized.folder / "gone.csv"], "no file", 4),
        (["--where", "nope = 1"], "nope", 2),
    ]
    for arguments, message, code in wrong:
        answer = materialized("erase", "--snapshot", "flights", *arguments)
        assert (answer.code, message in answer.err) == (code, True), answer.err
    unknown = listed(materialized.folder, 7, column="tail")
    answer = materialized("erase", "--snapshot", "flights", "--keys", unknown, "--json")
    assert (answer.code, "expected one column named 'flight_id'" in answer.json["message"]) == (2, True)
    assert entries(materialized) == before

    answer = materialized("erase", "--snapshot", "flights", "--keys", listed(materialized.folder, 7, 999_999))
    assert answer.code == 0
    wanted = ("delays/1  pending", "-> snapline materialize delays", "in no snapshot: 1 of the keys", "by indices of")
    assert [part for part in wanted if part not in answer.out] == []
    recorded = entries(materialized)
    again = materialized.ok("erase", "--snapshot", "flights", "--keys", listed(materialized.folder, 999_999, 7))
    assert (again["recorded"], again["affected"][0]["model"]) == (False, "delays/1")
    assert (recorded, entries(materialized)) == (before + 1, recorded)
    assert "still has them today" in materialized("erasures").out


def test_rows_chosen_by_a_condition_are_erased_and_retiring_closes_the_request(
    materialized: Snapline, weights: Callable[[str, int], Path]
) -> None:
    materialized.ok("register", "child", "--weights", weights("w", 3), "--parent", "delays/1")
    asked = materialized.ok("erase", "--snapshot", "flights", "--where", "dep_delay > 35 AND flight_id < 500")
    assert asked["keys"] == 13
    assert [model["model"] for model in asked["affected"]] == ["child/1", "delays/1"]
    assert [step["command"] for step in asked["plan"]] == ["snapline materialize delays", None]
    retired = materialized.ok("retire", "delays/1", "--reason", "asked to")
    assert (retired["model"], retired["version"], retired["recorded"]) == ("delays", 1, True)
    assert only(materialized)["state"] == "open"
    materialized.ok("retire", "child")
    found = only(materialized)
    assert (found["state"], [model["state"] for model in found["affected"]]) == ("closed", ["retired", "retired"])
    assert materialized.ok("retire", "child")["recorded"] is False


def test_keys_are_stored_in_plain_only_when_asked(snapline: Snapline, source: Path) -> None:
    snapline.ok("init")
    table = pq.read_table(source)
    names = pa.array([f"passenger-{key}-of-flight" for key in table["flight_id"].to_pylist()])
    pq.write_table(table.set_column(0, "flight_id", names), source)
    options = ["--time", "dep_time", "--key", "flight_id", "--from", "2013-01-01", "--until", "2013-01-05"]
    snapline.ok("snapshot", "take", "flights", "--source", source, *options)
    for number, kept in ((7, []), (8, ["--keep-plain"])):
        keys = listed(snapline.folder, f"passenger-{number}-of-flight")
        assert snapline.ok("erase", "--snapshot", "flights", "--keys", keys, *kept)["absent"] == 0
    stored = b"".join(path.read_bytes() for path in snapline.home.rglob("*") if path.is_file())
    assert b"passenger-7-of-flight" not in stored
    assert b"passenger-8-of-flight" in stored
