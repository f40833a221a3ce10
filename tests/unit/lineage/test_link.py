from __future__ import annotations

from pathlib import Path

import pytest
from histories import START, defined, key, linked, registered, snapshot, taken, view

from snapline.lineage.errors import DefinitionError, NotFoundError, SnaplineError
from snapline.lineage.events import LineageEvent
from snapline.lineage.ledger import Ledger
from snapline.lineage.link import KINDS, link, resolve_edges
from snapline.lineage.model import EdgeKind, UseKind, parse_reference
from snapline.lineage.signing import SigningKey, TrustedKeys
from snapline.lineage.state import fold
from snapline.lineage.stores.memory import MemoryStore
from snapline.lineage.view import View

CUT = snapshot()


def ledger_of(folder: Path, *events: LineageEvent) -> Ledger:
    key = SigningKey.create(folder / "signing.key")
    ledger = Ledger(MemoryStore(), key, TrustedKeys({key.key_id: key.public}), folder / "head.json")
    ledger.commit(lambda _state: events)
    return ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    """A chain c from b from a, and a model d beside it."""
    chain = [registered("a"), registered("b", "a"), registered("c"), linked("c", EdgeKind.ADAPTER_OF, "b")]
    return ledger_of(tmp_path, taken(CUT), *chain, registered("d"))


def add(ledger: Ledger, model: str, *edges: str) -> list[str]:
    """Record edges; return those that were new."""
    _, added = link(parse_reference(model), edges, ledger, START)
    return [f"{use.kind}={use.snapshot[:8]}" for use in added.uses] + [f"{p.kind}={p.model}" for p in added.parents]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_recorded_once(kind: str, ledger: Ledger) -> None:
    reference = "trips" if kind in list(UseKind) else "d"
    assert len(add(ledger, "c", f"{kind}={reference}")) == 1
    length = ledger.load().length
    assert add(ledger, "c", f"{kind}={reference}", f"{kind}={reference}") == []
    assert ledger.load().length == length
    model = ledger.state().models["c"][0]
    assert (kind in {use.kind for use in model.uses}) != (
        kind in {p.kind for p in model.parents if p.model == key("d")}
    )


def test_edges_given_together_are_one_entry(ledger: Ledger) -> None:
    length = ledger.load().length
    added = add(ledger, "d", "merged_from=a", f"evaluated_on=trips@{CUT.id[:9]}", "merged_from=b/1")
    assert added == [f"evaluated_on={CUT.id[:8]}", "merged_from=a/1", "merged_from=b/1"]
    assert ledger.load().length == length + 1


@pytest.mark.parametrize(
    ("model", "edge", "error", "message"),
    [
        (
            "a",
            "merged_from=c",
            DefinitionError,
            "a/1 cannot be merged from c/1, which came from it: c/1 from b/1 from a/1",
        ),
        ("a", "quantized_from=b", DefinitionError, "which came from it: b/1 from a/1"),
        ("a", "adapter_of=a", DefinitionError, "a/1 cannot be adapter of itself"),
        ("a", "made_of=d", DefinitionError, "expected an edge KIND=REFERENCE, found 'made_of=d'"),
        ("a", "merged_from", DefinitionError, "found 'merged_from'"),
        ("a", "merged_from=", DefinitionError, "found 'merged_from='"),
        ("a", "=d", DefinitionError, "found '=d'"),
        ("a", "merged_from=x y", DefinitionError, "expected a model"),
        ("a", "merged_from=nobody", NotFoundError, "no model 'nobody'"),
        ("a", "evaluated_on=d", NotFoundError, "no snapshot 'd'; there are: trips"),
        ("a", "merged_from=trips", NotFoundError, "no model 'trips'"),
        ("nobody", "merged_from=a", NotFoundError, "no model 'nobody'"),
    ],
)
def test_an_edge_that_cannot_be_records_nothing(
    model: str, edge: str, error: type[SnaplineError], message: str, ledger: Ledger
) -> None:
    length = ledger.load().length
    with pytest.raises(error) as caught:
        add(ledger, model, "merged_from=d", edge)
    assert message in caught.value.message
    assert ledger.load().length == length


def test_an_unknown_kind_is_told_the_known_ones() -> None:
    with pytest.raises(DefinitionError) as caught:
        resolve_edges(["made_of=d"], fold([registered("d")]))
    assert "trained_on, evaluated_on, calibrated_on, fine_tuned_from, distilled_from, adapter_of" in caught.value.hint


def test_a_snapshot_of_the_view_is_trained_on_already(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, taken(CUT), defined(view()), registered("m", cut=CUT))
    assert add(ledger, "m", "trained_on=trips") == []
    assert add(ledger, "m", "evaluated_on=trips") == [f"evaluated_on={CUT.id[:8]}"]


def test_the_base_model_of_a_view_stays_as_it_is(tmp_path: Path) -> None:
    based = View(definition=view().definition.model_copy(update={"base_model": "a/1"}), code=(), environment=None)
    made = registered("m", "a", cut=CUT, made_by=based)
    ledger = ledger_of(tmp_path, taken(CUT), defined(based), registered("a"), registered("d"), made)
    with pytest.raises(DefinitionError, match="the view's base model is a/1, the parent given is d/1"):
        add(ledger, "m", "fine_tuned_from=d")
    assert add(ledger, "m", "fine_tuned_from=a") == []
    assert add(ledger, "m", "distilled_from=d") == ["distilled_from=d/1"]
