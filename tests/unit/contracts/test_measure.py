"""Measuring: which pairs are compared, in which order, and what becomes of what is missing."""

from __future__ import annotations

import dataclasses
import math

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from snapline.contracts import measure as measuring
from snapline.contracts.engines.protocol import Batching, EngineIdentity, EngineSpec, Path, ProbeItem
from snapline.contracts.engines.replay import ReplayEngine
from snapline.contracts.errors import EngineFailedError, IncomparableError
from snapline.contracts.evidence import SCHEMA, Pair, evidence_from_parquet, evidence_to_parquet
from snapline.contracts.measure import Procedure, measure, require_as_asked
from snapline.lineage.errors import IntegrityError

VOCABULARY = 11
IDENTITY = EngineIdentity("transformers", "5.19.0", "float32", "cpu", "a processor", VOCABULARY, "cpu")
ITEMS = [ProbeItem(f"p{n}", (1, 2), tuple((n + k) % VOCABULARY for k in range(1 + n % 3))) for n in range(7)]
BOTH = Procedure(paths=(Path.PREFILL, Path.DECODE_FORCED), chunk=3)
Logits = dict[str, torch.Tensor]


def logits(shift: float, seed: int = 0) -> Logits:
    generator = torch.Generator().manual_seed(seed)
    return {item.id: torch.randn(len(item.answer), VOCABULARY, generator=generator) + shift for item in ITEMS}


def moved(by: Logits, amount: float) -> Logits:
    return {id: rows + amount * torch.linspace(-1, 1, VOCABULARY) for id, rows in by.items()}


REFERENCE = logits(0.0)


def engine(prefill: Logits, *, alone: Logits | None = None, decode: Logits | None = None) -> ReplayEngine:
    return ReplayEngine(
        IDENTITY,
        {
            (Path.PREFILL, Batching.BATCHED): prefill,
            (Path.PREFILL, Batching.ALONE): alone or prefill,
            (Path.DECODE_FORCED, Batching.BATCHED): decode or prefill,
            (Path.DECODE_FORCED, Batching.ALONE): decode or prefill,
        },
    )


def evidence(serving: ReplayEngine, procedure: Procedure = BOTH, reference: ReplayEngine | None = None) -> pa.Table:
    return measure(reference or engine(REFERENCE), serving, ITEMS, procedure, lambda _: None)


def half_spans(table: pa.Table, pair: Pair, path: Path) -> list[float]:
    kept = table.filter((pc.field("pair") == pair.value) & (pc.field("path") == path.value))
    found: list[float] = kept["half_span"].to_pylist()
    return found


def test_each_pair_compares_the_programs_it_names() -> None:
    serving = engine(moved(REFERENCE, 0.5), alone=moved(REFERENCE, 0.4), decode=moved(REFERENCE, 0.2))
    reference = engine(REFERENCE, alone=moved(REFERENCE, 0.01))
    found = evidence(serving, reference=reference)
    assert found.schema.equals(SCHEMA)
    assert half_spans(found, Pair.SERVING, Path.PREFILL) == pytest.approx([0.5] * 13, abs=1e-6)
    assert half_spans(found, Pair.SERVING, Path.DECODE_FORCED) == pytest.approx([0.2] * 13, abs=1e-6)
    assert half_spans(found, Pair.BATCHING, Path.PREFILL) == pytest.approx([0.1] * 13, abs=1e-6)
    assert half_spans(found, Pair.BATCHING, Path.DECODE_FORCED) == [0.0] * 13
    first_chunk = sum(len(item.answer) for item in ITEMS[: BOTH.chunk])
    assert half_spans(found, Pair.NOISE_FLOOR, Path.PREFILL) == pytest.approx([0.01] * first_chunk, abs=1e-6)
    assert half_spans(found, Pair.NOISE_FLOOR, Path.DECODE_FORCED) == []


def test_rows_name_prompt_position_and_token() -> None:
    found = evidence(engine(REFERENCE), Procedure(paths=(Path.PREFILL,)))
    serving = found.filter(pc.field("pair") == "serving").select(["prompt", "position", "token"]).to_pylist()
    expected = [
        {"prompt": item.id, "position": position, "token": token}
        for item in ITEMS
        for position, token in enumerate(item.answer)
    ]
    assert serving == expected


def test_the_given_token_s_log_probability_is_its_own() -> None:
    found = evidence(engine(moved(REFERENCE, 0.3)), Procedure(paths=(Path.PREFILL,))).to_pylist()
    for row in (row for row in found if row["pair"] == "serving"):
        z = REFERENCE[row["prompt"]][row["position"]].double()
        assert row["logp_reference"] == pytest.approx(z.log_softmax(-1)[row["token"]].item(), abs=1e-9)


def test_chunks_change_the_order_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def ordered(table: pa.Table) -> pa.Table:
        judged = table.filter(pc.field("pair") != "noise-floor")
        return judged.sort_by([(name, "ascending") for name in ("pair", "path", "prompt", "position")])

    serving = engine(moved(REFERENCE, 0.5))
    whole = evidence(serving, dataclasses.replace(BOTH, chunk=100))
    assert ordered(evidence(serving, dataclasses.replace(BOTH, chunk=1))).equals(ordered(whole))
    assert evidence(serving, BOTH).equals(evidence(serving, BOTH))
    monkeypatch.setattr(measuring, "CHUNK_LOGITS", 1)
    assert ordered(evidence(serving, BOTH)).equals(ordered(whole))


def test_progress_ends_with_every_prompt() -> None:
    said: list[str] = []
    measure(engine(REFERENCE), engine(REFERENCE), ITEMS, BOTH, said.append)
    assert said == [f"measured {n} of 7 prompts" for n in (3, 6, 7)]


def test_an_unscored_prompt_has_no_row_and_the_others_do() -> None:
    partly = {id: rows for id, rows in REFERENCE.items() if id != "p2"}
    found = evidence(engine(REFERENCE, decode=partly))
    decode = found.filter(pc.field("path") == "decode-forced")
    assert set(decode["prompt"].to_pylist()) == {item.id for item in ITEMS} - {"p2"}
    assert "p2" in found.filter(pc.field("path") == "prefill")["prompt"].to_pylist()


def test_a_nan_leaves_its_position_out() -> None:
    broken = {id: rows.clone() for id, rows in REFERENCE.items()}
    broken["p5"][1, 3] = math.nan
    found = evidence(engine(broken), Procedure(paths=(Path.PREFILL,))).filter(pc.field("prompt") == "p5")
    serving = found.filter(pc.field("pair") == "serving")
    assert serving["position"].to_pylist() == [0, 2]
    assert found.filter(pc.field("pair") == "noise-floor").num_rows == 3


def test_an_infinite_distance_is_a_row() -> None:
    masked = {id: rows.clone() for id, rows in REFERENCE.items()}
    masked["p0"][0, 3] = -math.inf
    found = evidence(engine(masked), Procedure(paths=(Path.PREFILL,)))
    assert half_spans(found, Pair.SERVING, Path.PREFILL)[0] == math.inf


def test_nothing_to_measure_is_an_empty_table() -> None:
    found = measure(engine(REFERENCE), engine(REFERENCE), [], BOTH, lambda _: None)
    assert found.num_rows == 0
    assert found.schema.equals(SCHEMA)


def test_another_vocabulary_is_incomparable() -> None:
    other = ReplayEngine(dataclasses.replace(IDENTITY, vocabulary=12), {})
    with pytest.raises(IncomparableError, match="11 tokens, the serving engine's 12"):
        evidence(other)


def test_logits_of_another_shape_are_a_failure() -> None:
    with pytest.raises(EngineFailedError, match=r"expected logits of shape \(2, 11\) for probe 'p1', found \(1, 11\)"):
        evidence(engine(REFERENCE | {"p1": REFERENCE["p1"][:1]}))


@pytest.mark.parametrize(
    ("change", "says"),
    [({"dtype": "bfloat16"}, "dtype float32, but bfloat16"), ({"device": "cuda:0"}, "device cpu, but cuda")],
)
def test_what_runs_must_be_what_was_asked_for(change: dict[str, str], says: str) -> None:
    spec = EngineSpec("transformers", "float32")
    require_as_asked(spec, IDENTITY, VOCABULARY)
    require_as_asked(
        dataclasses.replace(spec, device="cuda"), dataclasses.replace(IDENTITY, device="cuda:0"), VOCABULARY
    )
    with pytest.raises(IncomparableError, match=says):
        require_as_asked(spec, dataclasses.replace(IDENTITY, **change), VOCABULARY)  # type: ignore[arg-type]
    with pytest.raises(IncomparableError, match="vocabulary 12, but 11"):
        require_as_asked(spec, IDENTITY, 12)


def test_evidence_survives_parquet_with_the_same_bytes_each_time() -> None:
    found = evidence(engine(moved(REFERENCE, 0.5)))
    data = evidence_to_parquet(found, {"b": "2", "a": "1"})
    assert data == evidence_to_parquet(found.combine_chunks(), {"a": "1", "b": "2"})
    back = evidence_from_parquet(data)
    assert back.equals(found)
    assert back.schema.metadata == {b"a": b"1", b"b": b"2"}
    assert not any(field.nullable for field in back.schema)


def test_what_is_not_evidence_is_not_trusted() -> None:
    with pytest.raises(IntegrityError, match="not readable as Parquet"):
        evidence_from_parquet(b"PAR1 of something else PAR1")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"prompt": ["p0"]}), sink)
    with pytest.raises(IntegrityError, match="expected evidence with the columns"):
        evidence_from_parquet(sink.getvalue().to_pybytes())
