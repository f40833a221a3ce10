"""Reading serving logs, and what observability makes of them."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from serving_logs import FIRST, as_table, request, requests, write_arrow, write_jsonl, write_parquet

from snapline.contracts.rollout.documents import LogField, Observability
from snapline.contracts.rollout.log import LOG_SCHEMA, ServingLog, Tally, json_schema, read_log
from snapline.contracts.rollout.observability import check_observability, require_possible
from snapline.contracts.rollout.record import ServingRecord
from snapline.contracts.verdict import Verdict
from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError, NotFoundError

HOUR = timedelta(hours=1)
WRITERS = {".jsonl": write_jsonl, ".parquet": write_parquet, ".arrow": write_arrow}


def read(path: Path) -> ServingLog:
    return read_log(path, BulkAlgorithm.BLAKE3, lambda _: True)


@pytest.mark.parametrize("suffix", WRITERS)
def test_every_kind_of_file_says_the_same(tmp_path: Path, suffix: str) -> None:
    rows = [request(0), request(1, tags={}, margin=None), request(2, sampled_logprob=None)]
    found = read(WRITERS[suffix](tmp_path / f"log{suffix}", rows))
    assert [record.model_dump() for record in found.wanted] == [
        ServingRecord.model_validate(row).model_dump() for row in rows
    ]
    assert {one.field: (one.requests, one.first) for one in found.tally.lacking} == {
        LogField.MARGIN: (1, "r1"),
        LogField.SAMPLED_LOGPROB: (1, "r2"),
    }


def test_only_what_is_wanted_is_kept_and_all_is_counted(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "log.jsonl", requests([0] * 10))
    found = read_log(path, BulkAlgorithm.BLAKE3, lambda record: record.id == "r7")
    assert [record.id for record in found.wanted] == ["r7"]
    assert (found.tally.requests, found.tally.oldest, found.tally.newest) == (10, FIRST, FIRST + timedelta(seconds=9))


def test_what_was_wanted_comes_in_order_of_time(tmp_path: Path) -> None:
    found = read(write_jsonl(tmp_path / "log.jsonl", list(reversed(requests([0] * 5)))))
    assert [record.id for record in found.wanted] == ["r0", "r1", "r2", "r3", "r4"]


def test_the_digest_is_of_the_bytes(tmp_path: Path) -> None:
    one, same = (write_jsonl(tmp_path / name, requests([0, 1])) for name in ("one.jsonl", "same.jsonl"))
    other = write_jsonl(tmp_path / "other.jsonl", requests([0, 2]))
    assert read(one).digest == read(same).digest != read(other).digest
    assert read(one).digest.startswith("blake3-log-v1:")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", r"log.jsonl:2: "),
        ("[]", r"log.jsonl:2: "),
        (json.dumps(request(1) | {"token_ids": []}), r"log.jsonl:2: token_ids: "),
        (json.dumps(request(1) | {"sampled_logprob": [-1.0]}), r"sampled_logprob: expected one figure for each of 2"),
        (json.dumps(request(1) | {"sampled_logprob": [-1.0, 0.5]}), r"log.jsonl:2: sampled_logprob.1: "),
        (json.dumps(request(1)).replace("-2.0", "NaN", 1), r"log.jsonl:2: sampled_logprob.1: "),
        (json.dumps(request(1) | {"route": "elsewhere"}), r"log.jsonl:2: route: "),
        (json.dumps(request(1) | {"tags": {"language": 3}}), r"log.jsonl:2: tags.language: "),
        (json.dumps(request(0)), r"log.jsonl:2: id: 'r0' was given already, at .*log.jsonl:1"),
    ],
)
def test_a_bad_line_is_named_with_its_field(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(json.dumps(request(0)) + "\n" + line + "\n")
    with pytest.raises(DefinitionError, match=said):
        read(path)


def test_a_bad_row_of_a_table_is_named_with_its_field(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "log.parquet", [request(0), request(1, batch_size=0)])
    with pytest.raises(DefinitionError, match=r"log.parquet: row 2: batch_size: "):
        read(path)


def test_a_copy_may_have_the_id_of_the_request_it_is_a_copy_of(tmp_path: Path) -> None:
    rows = [request(0, route="reference"), request(0, route="shadow")]
    assert read(write_jsonl(tmp_path / "log.jsonl", rows)).tally.requests == 2


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("log.jsonl", "", "expected at least one request"),
        ("log.csv", "id", "expected a serving log named"),
        ("log.parquet", "no parquet", "cannot be read as a serving log"),
        ("log.arrow", "no arrow", "cannot be read as a serving log"),
    ],
)
def test_what_is_no_log_is_refused(tmp_path: Path, name: str, text: str, said: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(DefinitionError, match=said):
        read(tmp_path / name)
    with pytest.raises(NotFoundError):
        read(tmp_path / f"absent-{name}" if name != "log.csv" else tmp_path / "absent.jsonl")


def test_the_published_schemas_have_the_same_names() -> None:
    assert set(LOG_SCHEMA.names) == set(json_schema()["properties"])
    assert {field.name for field in LOG_SCHEMA if not field.nullable} == set(json_schema()["required"])
    assert as_table([request(0)]).schema.equals(LOG_SCHEMA)


DEMANDED = {"log": ["sampled_logprob", "margin"]}


def judged(now: Any = FIRST + HOUR, since: Any = FIRST, /, demanded: Any = None, **tally: Any) -> dict[str, Any]:
    said = Observability.model_validate(DEMANDED | (demanded or {}))
    found = Tally.model_validate({"requests": 10, "oldest": FIRST, "newest": FIRST} | tally)
    return {finding.slice: finding for finding in check_observability(said, found, since, now)}


def test_a_missing_field_is_refuted_with_how_many_and_which() -> None:
    found = judged(lacking=[{"field": "margin", "requests": 3, "first": "r4"}])
    assert found["log.margin"].verdict is Verdict.REFUTED
    assert "3 of 10 requests lack it, the first 'r4'" in found["log.margin"].reason
    assert found["log.sampled_logprob"].verdict is Verdict.CERTIFIED


@pytest.mark.parametrize(("age", "verdict"), [("2h", Verdict.CERTIFIED), ("30m", Verdict.REFUTED)])
def test_a_log_may_be_no_older_than_is_allowed(age: str, verdict: Verdict) -> None:
    assert judged(demanded={"max_age": age})["max_age"].verdict is verdict


@pytest.mark.parametrize(
    ("served", "verdict"), [(None, Verdict.UNDECIDED), (10, Verdict.CERTIFIED), (11, Verdict.REFUTED)]
)
def test_the_share_that_is_logged_takes_the_engines_own_count(served: int | None, verdict: Verdict) -> None:
    assert judged(served=served)["sampling"].verdict is verdict
    if served == 11:
        assert judged(served=served, demanded={"sampling": "0.9"})["sampling"].verdict is Verdict.CERTIFIED


def test_retention_is_shown_by_an_old_request_and_asked_only_once_serving_is_as_old() -> None:
    kept = {"retention": "30m"}
    assert judged(demanded=kept)["retention"].verdict is Verdict.CERTIFIED
    assert "serving" in judged(demanded={"retention": "2h"})["retention"].reason
    young = judged(FIRST + HOUR, FIRST - HOUR, demanded={"retention": "90m"})["retention"]
    assert young.verdict is Verdict.UNDECIDED, "a log that begins later says nothing about what was before"


def test_a_log_that_cannot_be_is_refused() -> None:
    tally = Tally(requests=10, oldest=FIRST, newest=FIRST, served=10)
    require_possible(tally, FIRST)
    with pytest.raises(DefinitionError, match="more than the 9"):
        require_possible(tally.model_copy(update={"served": 9}), FIRST)
    with pytest.raises(DefinitionError, match="answered at"):
        require_possible(tally, FIRST - HOUR)


def test_without_a_log_nothing_is_known() -> None:
    (finding,) = check_observability(Observability.model_validate(DEMANDED), None, FIRST, FIRST)
    assert finding.verdict is Verdict.UNDECIDED
