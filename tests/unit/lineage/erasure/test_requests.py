"""Erasing: what is recorded, what it reaches, and what closes it."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lineage_home import DAY, NOW, VIEW, LineageHome
from source_rows import flights
from source_tables import DeltaTables

from snapline.lineage.erasure.affected import Settlement, affected, pending
from snapline.lineage.erasure.certificate import ErasureCertificate, issue, read
from snapline.lineage.erasure.closing import certificate_of, close_settled, held_by_sources
from snapline.lineage.erasure.requests import Outcome, Request, erase, retire
from snapline.lineage.erasure.tombstones import decode_tombstones, encode_tombstones, tombstones_of
from snapline.lineage.errors import DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.events import Erased
from snapline.lineage.register import Origin
from snapline.lineage.series import CutOptions, Desk, rows_of
from snapline.lineage.signing import SigningKey, TrustedKeys

OTHER_WINDOW = CutOptions(since="2013-01-02", until="2013-01-04")


class Office(LineageHome):
    """A home where rows are erased."""

    @property
    def desk(self) -> Desk:
        return Desk(self.objects, NOW)

    @property
    def trusted(self) -> TrustedKeys:
        return TrustedKeys({self.key.key_id: self.key.public})

    def keys(self, *ids: object, name: str = "keys.csv") -> Path:
        path = self.folder / name
        path.write_text("id\n" + "".join(f"{found}\n" for found in ids))
        return path

    def erase(self, *ids: object, names: tuple[str, ...] = ("trips",), **more: object) -> Outcome:
        return erase(Request(names, self.keys(*ids), **more), self.ledger, self.desk)

    def close(self) -> list[str]:
        return [event.erasure for event in close_settled(self.ledger, self.key, self.desk)]


@pytest.fixture
def home(tmp_path: Path) -> Office:
    return Office(tmp_path)


def test_every_snapshot_ever_taken_of_the_series_is_searched(home):
    first = home.take()
    second = home.take(cut=OTHER_WINDOW)
    outcome = home.erase(0, reason="art. 17")
    assert outcome.recorded
    assert outcome.searched == 2
    assert outcome.rows == first.rows + second.rows
    assert outcome.index_bytes > 0
    erased = home.state.erasures[outcome.erased.erasure]
    assert erased.snapshots == (first.id,)
    assert (erased.keys, erased.absent, erased.reason, erased.plain) == (1, 0, "art. 17", None)


def test_keys_in_no_snapshot_are_counted_and_named(home):
    home.take()
    outcome = home.erase(3, 99, 98, 99)
    assert (outcome.erased.keys, outcome.erased.absent) == (3, 2)
    assert outcome.absent == ("99", "98")


def test_the_same_keys_are_erased_once_in_whatever_order_and_file(home):
    home.take()
    first, entries = home.erase(3, 1), len(home.ledger.entries())
    again = home.erase(1, 3, 3, reason="once more")
    assert not again.recorded
    assert again.erased == first.erased
    assert len(home.ledger.entries()) == entries
    assert home.erase(1).recorded


def test_no_later_snapshot_has_the_rows_though_the_source_still_does(home):
    before = home.take()
    home.erase(2)
    after = home.take(now=NOW + DAY)
    assert (before.rows, after.rows) == (6, 5)
    assert 2 not in rows_of(after, home.state, home.desk)["id"].to_pylist()
    assert 2 in rows_of(before, home.state, home.desk)["id"].to_pylist()


def test_rows_are_chosen_by_a_condition_too(home):
    home.take()
    outcome = erase(Request(("trips",), where="delay >= 4"), home.ledger, home.desk)
    assert outcome.erased.keys == 2
    assert home.take(now=NOW + DAY).rows == 4
    with pytest.raises(DefinitionError, match="no row of trips is one where delay = 77"):
        erase(Request(("trips",), where="delay = 77"), home.ledger, home.desk)
    with pytest.raises(DefinitionError, match="must be true or false"):
        erase(Request(("trips",), where="delay"), home.ledger, home.desk)


def test_several_series_are_erased_from_at_once_and_others_of_the_source_are_named(home):
    home.take()
    home.take("rides", home.options(known=None))
    home.take("tours", home.options())
    outcome = home.erase(1, names=("trips", "rides"))
    assert outcome.erased.series == ("rides", "trips")
    assert len(outcome.erased.snapshots) == 2
    assert outcome.same_source == ("tours",)
    assert tombstones_of("tours", home.state, home.objects) is None


@pytest.mark.parametrize(("ids", "message"), [(["x"], "line 2: 'x' is no int64"), ([], "lists no key")])
def test_bad_keys_record_nothing(home, ids, message):
    home.take()
    entries, objects = len(home.ledger.entries()), len(list(home.objects.root.rglob("*")))
    with pytest.raises(DefinitionError, match=message):
        home.erase(*ids)
    assert len(home.ledger.entries()) == entries
    assert len(list(home.objects.root.rglob("*"))) == objects


def test_neither_or_both_of_keys_and_condition_are_refused(home):
    home.take()
    for request in (Request(("trips",)), Request(("trips",), home.keys(1), "delay = 1")):
        with pytest.raises(DefinitionError, match="either a file of keys or a condition"):
            erase(request, home.ledger, home.desk)
    with pytest.raises(NotFoundError, match="no snapshot 'nope'"):
        home.erase(1, names=("nope",))


def test_plain_keys_are_kept_only_when_asked(home):
    home.take()
    erased = home.erase(3, 5, keep_plain=True).erased
    assert pq.read_table(pa.BufferReader(home.objects.read(erased.plain)))["trips"].to_pylist() == [3, 5]
    stored = home.objects.read(home.erase(4).erased.tombstones)
    assert pq.read_table(pa.BufferReader(stored)).num_columns == 1


def test_a_request_closes_when_the_model_was_retrained_without_the_rows(home):
    home.take()
    home.define()
    home.materialize()
    erased = home.erase(2).erased
    assert [model.state for model in affected(erased, home.state)] == [Settlement.PENDING]
    assert home.close() == []
    second = home.materialize()
    assert pending(home.state, second.key) == ()
    assert home.close() == [erased.erasure]
    assert home.close() == []
    certificate = certificate_of(home.state.closed[erased.erasure], home.state, home.desk, home.trusted)
    (model,) = certificate.models
    assert (model.model, model.settled, model.by) == ("delays/1", "retrained", "delays/2")
    assert [(snapshot.rows, snapshot.may_hold) for snapshot in certificate.snapshots] == [(6, True), (5, False)]
    assert (certificate.keys, certificate.absent, certificate.recipe) == (1, 0, "membership-v1")
    assert 0 < float(certificate.over_report) < 1e-17


def test_a_request_closes_when_everything_affected_is_retired(home):
    snapshot = home.take()
    home.define()
    base = home.register("base", 1, Origin("delays", (f"trips@{snapshot.id}",)))
    child = home.register("child", 2, Origin(parents=("base/1",)))
    erased = home.erase(2).erased
    assert retire(base.key, "gone", home.ledger, home.desk)
    assert not retire(base.key, "again", home.ledger, home.desk)
    assert home.state.retired[base.key].reason == "gone"
    assert home.close() == []
    retire(child.key, None, home.ledger, home.desk)
    assert home.close() == [erased.erasure]


def test_a_request_that_affects_no_model_closes_at_once(home):
    home.take()
    erased = home.erase(2).erased
    assert home.close() == [erased.erasure]
    assert home.take(now=NOW + DAY).rows == 5


def test_a_version_made_from_the_old_snapshot_after_closing_is_affected(home):
    old = home.take()
    home.define()
    erased = home.erase(2).erased
    home.close()
    late = home.register("late", 1, Origin("delays", (f"trips@{old.id}",)))
    assert pending(home.state, late.key) == (erased,)


def test_a_policy_of_retiring_retires_what_is_affected(home):
    home.take()
    home.define(VIEW.replace("max_age: 36500d", "max_age: 36500d, on_erasure: retire"))
    first = home.materialize()
    erased = home.erase(2).erased
    assert [model.state for model in affected(erased, home.state)] == [Settlement.RETIRED]
    assert "on_erasure: retire" in home.state.retired[first.key].reason
    assert home.close() == [erased.erasure]


def test_what_a_source_still_holds_is_named_until_it_does_not(home):
    home.take()
    erased = home.erase(2).erased
    (source,) = held_by_sources(erased, home.state, home.desk)
    assert (source.series, source.commits, [commit.newest for commit in source.held]) == ("trips", 1, [True])
    home.rows = [row for row in home.rows if row["id"] != 2]
    home.write()
    (source,) = held_by_sources(erased, home.state, home.desk)
    assert (source.commits, source.held, source.problem) == (1, (), None)
    home.source.unlink()
    (source,) = held_by_sources(erased, home.state, home.desk)
    assert source.problem


def test_commits_that_time_travel_keeps_are_named_until_they_are_expired(home):
    maker = DeltaTables()
    spec = maker.create(home.folder, flights(range(10)))
    home.take("flights", home.options(source=spec, time="time", known=None, key="key"))
    maker.append(flights(range(10, 14)))
    maker.delete([3])
    erased = erase(Request(("flights",), where="key = 3"), home.ledger, home.desk).erased
    (source,) = held_by_sources(erased, home.state, home.desk)
    assert (source.commits, [(commit.id, commit.newest) for commit in source.held]) == (3, [("0", False), ("1", False)])
    maker.expire()
    (source,) = held_by_sources(erased, home.state, home.desk)
    assert (source.held, source.problem) == ((), None)


def test_tombstones_of_another_home_or_of_no_home_are_refused(home):
    hashes = decode_tombstones(encode_tombstones(pa.array([3, 1, 3], pa.uint64()).to_numpy(), "ab" * 32), "ab" * 32)
    assert hashes.tolist() == [1, 3]
    with pytest.raises(IntegrityError, match="not of this home"):
        decode_tombstones(encode_tombstones(hashes, "ab" * 32), "cd" * 32)
    with pytest.raises(IntegrityError, match="cannot be read"):
        decode_tombstones(b"PAR1", "ab" * 32)


def closed_certificate(home: Office) -> tuple[Erased, ErasureCertificate]:
    home.take()
    erased = home.erase(2).erased
    home.close()
    return erased, certificate_of(home.state.closed[erased.erasure], home.state, home.desk, home.trusted)


def test_a_certificate_is_read_only_with_its_subject_its_type_and_a_trusted_signature(home, tmp_path):
    _, certificate = closed_certificate(home)
    assert read(issue(certificate, home.key), home.trusted) == certificate
    stranger = SigningKey.create(tmp_path / "stranger")
    with pytest.raises(IntegrityError, match="nobody trusts"):
        read(issue(certificate, stranger), home.trusted)
    from snapline.lineage.signing import open_envelope, seal
    from snapline.lineage.statements import PAYLOAD_TYPE

    statement = json.loads(open_envelope(issue(certificate, home.key), PAYLOAD_TYPE, home.trusted))
    for change in ({"subject": []}, {"predicateType": "urn:other"}, {"predicate": {}}, {"_type": "other"}):
        forged = seal(json.dumps(statement | change).encode(), PAYLOAD_TYPE, home.key)
        with pytest.raises(IntegrityError):
            read(forged, home.trusted)


def test_a_certificate_of_another_request_does_not_pass_for_this_ones(home):
    erased, certificate = closed_certificate(home)
    other = issue(certificate.model_copy(update={"erasure": "0" * 64}), home.key)
    swapped = home.state.closed[erased.erasure].model_copy(update={"certificate": home.objects.put(other)})
    with pytest.raises(IntegrityError, match="speaks of 000000000000"):
        certificate_of(swapped, home.state, home.desk, home.trusted)
