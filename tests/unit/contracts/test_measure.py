"""Measuring: which pairs are compared, in which order, and what becomes of what is missing."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

from snapline.contracts import measure as measuring
from snapline.contracts.engines.protocol import (
    Batching,
    Cache,
    EngineIdentity,
    EngineSpec,
    Path,
    ProbeItem,
    Sampled,
    Timing,
)
from snapline.contracts.engines.replay import ReplayEngine
from snapline.contracts.errors import EngineFailedError, IncomparableError
from snapline.contracts.evidence import SCHEMA, Pair, evidence_from_parquet, evidence_to_parquet
from snapline.contracts.measure import Around, Measurements, measure, require_as_asked
from snapline.contracts.procedure import Comparison, Procedure
from snapline.contracts.selfchecks import varied
from snapline.lineage.errors import IntegrityError

VOCABULARY = 11
IDENTITY = EngineIdentity("transformers", "5.19.0", "float32", "cpu", "a processor", VOCABULARY, "cpu")
ITEMS = [ProbeItem(f"p{n}", (1, 2), tuple((n + k) % VOCABULARY for k in range(1 + n % 3))) for n in range(7)]
GIVEN = (Path.PREFILL, Path.DECODE_FORCED)


def procedure(*paths: Path, chunk: int = 3, **others: Any) -> Procedure:
    """Return the procedure that holds the serving engine against the reference, and against itself in batches."""
    pairs = [(Pair.SERVING, path) for path in paths] + [(Pair.BATCHING, path) for path in paths if path in GIVEN]
    return Procedure(tuple(Comparison(pair, path, len(ITEMS)) for pair, path in pairs), chunk=chunk, **others)


BOTH = procedure(*GIVEN)
ONLY_PREFILL = procedure(Path.PREFILL, chunk=32)
Logits = dict[str, torch.Tensor]


def logits(shift: float, seed: int = 0) -> Logits:
    generator = torch.Generator().manual_seed(seed)
    return {item.id: torch.randn(len(item.answer), VOCABULARY, generator=generator) + shift for item in ITEMS}


def moved(by: Logits, amount: float) -> Logits:
    return {id: rows + amount * torch.linspace(-1, 1, VOCABULARY) for id, rows in by.items()}


REFERENCE = logits(0.0)


def engine(
    prefill: Logits,
    *,
    alone: Logits | None = None,
    decode: Logits | None = None,
    drawn: dict[str, Sampled] | None = None,
) -> ReplayEngine:
    return ReplayEngine(
        IDENTITY,
        {
            (Path.PREFILL, Batching.BATCHED, Cache.COLD): prefill,
            (Path.PREFILL, Batching.ALONE, Cache.COLD): alone or prefill,
            (Path.DECODE_FORCED, Batching.BATCHED, Cache.COLD): decode or prefill,
            (Path.DECODE_FORCED, Batching.ALONE, Cache.COLD): decode or prefill,
        },
        samples={(Batching.BATCHED, Cache.COLD): drawn or {}},
    )


@contextmanager
def no_variant(*_: object) -> Iterator[ReplayEngine]:
    raise AssertionError("nothing asked for another serving engine")
    yield


def measured(serving: ReplayEngine, procedure: Procedure = BOTH, reference: ReplayEngine | None = None) -> Measurements:
    return measure((reference or engine(REFERENCE), serving), ITEMS, procedure, Around(no_variant, lambda _: None))


def evidence(serving: ReplayEngine, procedure: Procedure = BOTH, reference: ReplayEngine | None = None) -> pa.Table:
    return measured(serving, procedure, reference).rows


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
    found = evidence(engine(REFERENCE), ONLY_PREFILL)
    serving = found.filter(pc.field("pair") == "serving").select(["prompt", "position", "token"]).to_pylist()
    expected = [
        {"prompt": item.id, "position": position, "token": token}
        for item in ITEMS
        for position, token in enumerate(item.answer)
    ]
    assert serving == expected


def test_the_given_token_s_log_probability_is_its_own() -> None:
    found = evidence(engine(moved(REFERENCE, 0.3)), ONLY_PREFILL).to_pylist()
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
    measure((engine(REFERENCE), engine(REFERENCE)), ITEMS, BOTH, Around(no_variant, said.append))
    assert said[:3] == [f"measured {n} of 7 prompts" for n in (3, 6, 7)]
    assert said[3:6] == [f"compared batching prefill on {n} prompts" for n in (3, 3, 1)]


def test_an_unscored_prompt_has_no_row_and_the_others_do() -> None:
    partly = {id: rows for id, rows in REFERENCE.items() if id != "p2"}
    found = evidence(engine(REFERENCE, decode=partly))
    decode = found.filter(pc.field("path") == "decode-forced")
    assert set(decode["prompt"].to_pylist()) == {item.id for item in ITEMS} - {"p2"}
    assert "p2" in found.filter(pc.field("path") == "prefill")["prompt"].to_pylist()


def test_a_nan_leaves_its_position_out() -> None:
    broken = {id: rows.clone() for id, rows in REFERENCE.items()}
    broken["p5"][1, 3] = math.nan
    found = evidence(engine(broken), ONLY_PREFILL).filter(pc.field("prompt") == "p5")
    serving = found.filter(pc.field("pair") == "serving")
    assert serving["position"].to_pylist() == [0, 2]
    assert found.filter(pc.field("pair") == "noise-floor").num_rows == 3


def test_an_infinite_distance_is_a_row() -> None:
    masked = {id: rows.clone() for id, rows in REFERENCE.items()}
    masked["p0"][0, 3] = -math.inf
    found = evidence(engine(masked), ONLY_PREFILL)
    assert half_spans(found, Pair.SERVING, Path.PREFILL)[0] == math.inf


def test_nothing_to_measure_is_an_empty_table() -> None:
    found = measure((engine(REFERENCE), engine(REFERENCE)), [], BOTH, Around(no_variant, lambda _: None)).rows
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


def test_answers_the_serving_engine_draws_are_scored_by_the_reference() -> None:
    """The reference must score the very tokens that were drawn, whatever their number."""
    drawn = {item.id: Sampled((3, 1)[: 1 + n % 2], moved(REFERENCE, 0.5)[item.id][: 1 + n % 2]) for n, item in TWO}
    reference = Remembering(engine(REFERENCE))
    found = measure(
        (reference, engine(REFERENCE, drawn=drawn)),
        [item for _, item in TWO],
        procedure(Path.DECODE_SAMPLED, chunk=32),
        Around(no_variant, lambda _: None),
    )
    assert found.sampled == {item.id: len(drawn[item.id].tokens) for _, item in TWO}
    assert [item.answer for item in reference.asked[-1]] == [drawn[item.id].tokens for _, item in TWO]
    rows = found.rows.filter(pc.field("path") == "decode-sampled").to_pylist()
    assert [row["token"] for row in rows] == [token for answer in drawn.values() for token in answer.tokens]
    assert [row["half_span"] for row in rows] == pytest.approx([0.5] * len(rows), abs=1e-6)


TWO = [(n, item) for n, item in enumerate(ITEMS) if len(item.answer) > 1]


class Remembering(ReplayEngine):
    """A replay that scores the first rows of what is stored, whatever the tokens, and remembers what it was asked."""

    def __init__(self, stored: ReplayEngine) -> None:
        super().__init__(stored.identity, {})
        self.asked: list[Sequence[ProbeItem]] = []

    def score(self, items: Sequence[ProbeItem], *_: Any) -> Logits:
        self.asked.append(items)
        return {item.id: REFERENCE[item.id][: len(item.answer)] for item in items}


@pytest.mark.parametrize("pair", [Pair.ORDER, Pair.REPEAT])
def test_an_engine_that_always_says_the_same_differs_in_nothing(pair: Pair) -> None:
    wanted = Procedure((Comparison(Pair.SERVING, Path.PREFILL, 7), Comparison(pair, Path.PREFILL, 4)), chunk=3)
    found = evidence(engine(REFERENCE), wanted).filter(pc.field("pair") == pair.value)
    assert len(set(found["prompt"].to_pylist())) == 4
    assert all(found["identical"].to_pylist())


class Drifting(ReplayEngine):
    """A replay that gives other numbers from its third batch on."""

    calls = 0

    def score(self, items: Sequence[ProbeItem], *how: Any) -> Logits:
        self.calls += 1
        found = dict(super().score(items, *how))
        return found if self.calls < 4 else moved(found, 0.1)


def test_three_repetitions_find_what_two_do_not() -> None:
    def differing(runs: int) -> int:
        comparison = Comparison(Pair.REPEAT, Path.PREFILL, 7, f"runs={runs}")
        wanted = Procedure((Comparison(Pair.SERVING, Path.PREFILL, 7), comparison), chunk=32)
        serving = Drifting(IDENTITY, {(Path.PREFILL, Batching.BATCHED, Cache.COLD): REFERENCE})
        found = evidence(serving, wanted).filter(pc.field("pair") == "repeat")
        return sum(not same for same in found["identical"].to_pylist())

    assert (differing(2), differing(3)) == (0, 13)


@pytest.mark.parametrize(
    ("pair", "path", "changed", "differs"),
    [
        (Pair.THREADS, Path.PREFILL, "threads=1", 0.3),
        (Pair.CHUNKED_PREFILL, Path.PREFILL, "", 0.3),
        (Pair.PREFIX_CACHE, Path.DECODE_FORCED, "", 0.2),
    ],
)
def test_a_changed_setting_is_held_against_the_engine_as_it_runs(
    pair: Pair, path: Path, changed: str, differs: float
) -> None:
    """But a warm cache against a cold one of the same second engine: the first one has no cache."""
    started = []

    @contextmanager
    def start(wanted: Pair, how: str) -> Iterator[ReplayEngine]:
        started.append((wanted, how))
        ways = {(path, Batching.BATCHED, Cache.COLD): moved(REFERENCE, 0.3)}
        yield ReplayEngine(IDENTITY, ways | {(path, Batching.BATCHED, Cache.WARM): moved(REFERENCE, 0.5)})

    wanted = Procedure((Comparison(pair, path, 5, changed),), chunk=3)
    found = measure((engine(REFERENCE), engine(REFERENCE)), ITEMS, wanted, Around(start, lambda _: None)).rows
    assert started == [(pair, changed)]
    spans = half_spans(found, pair, path)
    assert spans == pytest.approx([differs] * len(spans), abs=1e-6)
    assert len(set(found.filter(pc.field("pair") == pair.value)["prompt"].to_pylist())) == 5


def test_a_variant_differs_from_the_engine_in_one_thing() -> None:
    spec = EngineSpec("vllm", "float32")
    changed = {
        (Pair.PREFIX_CACHE, ""): {"prefix_caching": True},
        (Pair.CHUNKED_PREFILL, ""): {"chunked_prefill": True},
        (Pair.CUDA_GRAPHS, ""): {"cuda_graphs": True},
        (Pair.THREADS, "threads=3"): {"threads": 3},
        (Pair.TENSOR_PARALLEL, "tensor_parallel=2"): {"tensor_parallel": 2},
    }
    for (pair, how), fields in changed.items():
        assert varied(spec, pair, how) == dataclasses.replace(spec, **fields)
    with pytest.raises(ValueError, match="changes nothing"):
        varied(spec, Pair.ORDER, "")


def test_timings_are_paired_by_batch_and_no_prompt_is_timed_twice() -> None:
    def timed(seconds: float) -> ReplayEngine:
        alone = [Timing((item.id,), 16, seconds, 1000) for item in ITEMS]
        return ReplayEngine(
            IDENTITY, {(Path.PREFILL, Batching.BATCHED, Cache.COLD): REFERENCE}, timings={Batching.ALONE: alone}
        )

    wanted = Procedure((Comparison(Pair.SERVING, Path.PREFILL, 7),), timings=((Batching.ALONE, 30),))
    found = measure((timed(2.0), timed(1.0)), ITEMS, wanted, Around(no_variant, lambda _: None)).timings
    assert [timing.prompts for timing in found] == [(item.id,) for item in ITEMS]
    assert {(timing.seconds_reference, timing.seconds_serving) for timing in found} == {(2.0, 1.0)}


def test_logits_are_handed_over_once_for_each_side_and_path() -> None:
    kept: dict[tuple[str, str], list[str]] = {}
    drawn = {item.id: Sampled(item.answer, REFERENCE[item.id]) for item in ITEMS}
    wanted = procedure(Path.PREFILL, Path.DECODE_FORCED, Path.DECODE_SAMPLED)
    around = Around(no_variant, lambda _: None, lambda side, path, rows: kept.setdefault((side, path), []).extend(rows))
    measure((engine(REFERENCE), engine(REFERENCE, drawn=drawn)), ITEMS, wanted, around)
    assert set(kept) == {
        ("reference", "prefill"),
        ("serving", "prefill"),
        ("serving", "decode-forced"),
        ("reference", "decode-sampled"),
        ("serving", "decode-sampled"),
    }
    assert all(prompts == [item.id for item in ITEMS] for prompts in kept.values())


class Failing(ReplayEngine):
    """A replay whose fourth batch holds a NaN, and no other."""

    calls = 0

    def score(self, items: Sequence[ProbeItem], *how: Any) -> Logits:
        self.calls += 1
        found = {name: rows.clone() for name, rows in super().score(items, *how).items()}
        if self.calls == 4:
            found["p5"][1, 3] = math.nan
        return found


def test_a_nan_in_one_repetition_does_not_hide_behind_another() -> None:
    masked = {name: rows.clone() for name, rows in REFERENCE.items()}
    masked["p1"][0, 2] = -math.inf
    comparison = Comparison(Pair.REPEAT, Path.PREFILL, 7, "runs=3")
    wanted = Procedure((Comparison(Pair.SERVING, Path.PREFILL, 7), comparison), chunk=32)
    serving = Failing(IDENTITY, {(Path.PREFILL, Batching.BATCHED, Cache.COLD): masked})
    found = evidence(serving, wanted).filter(pc.field("pair") == "repeat")
    assert found.filter(pc.field("prompt") == "p5")["position"].to_pylist() == [0, 2]
    assert all(found["identical"].to_pylist()[:3])
