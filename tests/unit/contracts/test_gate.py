from __future__ import annotations

from dataclasses import replace

import pytest
from certificates import AT, IDENTITY, KEY, MODEL, attested, certificate, digest, finding
from immutables import Map

from snapline.contracts.certificate import Certificate
from snapline.contracts.gate import (
    Examined,
    GateDecision,
    GateOpen,
    Standing,
    TargetNow,
    basis_of,
    decide,
    examine,
    readable,
)
from snapline.contracts.verdict import Verdict
from snapline.lineage.errors import ConflictError, IntegrityError, RequirementError
from snapline.lineage.events import Attested, Recorded, SourceCompared
from snapline.lineage.invalidation import Cause, Change, Why
from snapline.lineage.model import Use, UseKind
from snapline.lineage.snapshot import Commit, Comparison
from snapline.lineage.state import State, apply
from snapline.lineage.view import OnRestatement, RefreshPolicy

PRODUCTION = TargetNow("production", IDENTITY)
FLOAT32 = IDENTITY.model_copy(update={"dtype": "float32"})
UNBOUND = MODEL.model_copy(update={"contract": None})
CERTIFIED, UNDECIDED, REFUTED = Verdict.CERTIFIED, Verdict.UNDECIDED, Verdict.REFUTED


class Shelf:
    """A state with a model's attestations, and a way to read the certificates they stand for."""

    def __init__(self, *certificates: Certificate | None, model=MODEL) -> None:
        self.certificates = {attested(n).envelope: found for n, found in enumerate(certificates)}
        self.state = State(
            models=Map({KEY.name: (model,)}),
            attestations=Map({KEY: tuple(attested(n) for n in range(len(certificates)))}),
            records=Map(
                {("contract", name): record("contract", name) for name in ("tiny", "strict")}
                | {("probes", "chats"): record("probes", "chats")}
            ),
        )
        self.model = model

    def read(self, found: Attested) -> Certificate:
        certificate = self.certificates[found.envelope]
        if certificate is None:
            raise IntegrityError("bytes changed")
        return certificate

    def examine(self, target: TargetNow = PRODUCTION) -> Examined:
        return examine(self.model, target, self.state, self.read)

    def decide(self, target: TargetNow = PRODUCTION, *causes: Cause) -> GateDecision:
        basis = basis_of(self.model, self.state)
        return decide(self.model, target.name, causes, self.examine(target), RefreshPolicy(), basis)

    def without(self, what: str, name: str) -> State:
        return replace(self.state, records=self.state.records.delete((what, name)))


def record(what: str, name: str) -> Recorded:
    return Recorded.model_validate(
        {"at": AT, "what": what, "name": name, "digest": digest(what), "object": digest("object", "1")}
    )


def under(contract: str, verdict: Verdict = CERTIFIED, **changes) -> Certificate:
    bound = {"name": contract, "digest": digest("contract"), "object": digest("object", "1")}
    return certificate(verdict, contract=bound, **changes)


def whys(decision: GateDecision) -> list[Change]:
    return [cause.change for cause in decision.causes]


def test_a_certificate_for_exactly_this_opens():
    decision = Shelf(certificate()).decide()
    assert decision.open
    assert (decision.why, decision.reasons, decision.envelope) == (None, (), attested(0).envelope)


def test_no_certificate_is_not_a_yes():
    decision = Shelf().decide()
    assert (decision.open, decision.why, whys(decision)) == (False, Why.UNKNOWN, [Change.NEVER_CERTIFIED])
    assert not Shelf(model=UNBOUND).decide().open


@pytest.mark.parametrize(("verdict", "why"), [(REFUTED, Why.NO), (UNDECIDED, Why.UNKNOWN)])
def test_another_verdict_shuts_and_says_which_finding(verdict, why):
    findings = [finding(CERTIFIED, clause="half_span"), finding(verdict)]
    decision = Shelf(certificate(verdict, findings=findings)).decide()
    assert (decision.open, decision.why) == (False, why)
    (reason,) = decision.reasons
    assert f"{verdict} under contract 'tiny' (tv_token on all, prefill: it is {verdict})" in reason


@pytest.mark.parametrize("order", [(CERTIFIED, REFUTED), (REFUTED, CERTIFIED)])
def test_the_newest_word_for_an_identity_counts(order):
    assert Shelf(*map(certificate, order)).decide().open is (order[-1] is CERTIFIED)


def test_a_newer_word_about_another_identity_does_not():
    elsewhere = certificate(REFUTED, target_identity=FLOAT32)
    assert Shelf(certificate(), elsewhere).decide().envelope == attested(0).envelope
    decision = Shelf(certificate(), elsewhere).decide(TargetNow("production", FLOAT32))
    assert (decision.open, decision.why) == (False, Why.NO)


def test_another_identity_has_no_certificate_and_hears_what_moved():
    decision = Shelf(certificate()).decide(TargetNow("production", FLOAT32))
    assert (decision.why, whys(decision)) == (Why.UNKNOWN, [Change.ENGINE_CHANGED])
    assert "dtype was bfloat16, is float32" in decision.reasons[0]


def test_a_target_by_another_name_but_the_same_inside_shares_the_certificate():
    assert Shelf(certificate()).decide(TargetNow("staging", IDENTITY)).open


def test_a_target_that_cannot_be_read_is_unknown():
    decision = Shelf(certificate()).decide(TargetNow("production", None, "no such interpreter"))
    assert (decision.why, decision.envelope) == (Why.UNKNOWN, None)
    assert "no such interpreter" in decision.reasons[0]


def test_the_bound_contract_alone_counts():
    assert Shelf(under("tiny"), under("strict", REFUTED)).decide().open
    decision = Shelf(under("strict")).decide()
    assert (decision.open, whys(decision)) == (False, [Change.NEVER_CERTIFIED])
    assert "none under contract 'tiny'" in decision.reasons[0]


def test_without_a_bound_contract_every_one_counts():
    assert Shelf(under("tiny"), under("strict"), model=UNBOUND).decide().open
    decision = Shelf(under("tiny"), under("strict", REFUTED), model=UNBOUND).decide()
    assert (decision.open, decision.why) == (False, Why.NO)
    stale = Shelf(under("tiny"), under("strict", target_identity=FLOAT32), model=UNBOUND).decide()
    assert whys(stale) == [Change.ENGINE_CHANGED]


def test_without_a_bound_contract_those_of_other_targets_do_not():
    elsewhere = under("strict", target="staging", target_identity=FLOAT32)
    assert Shelf(under("tiny"), elsewhere, model=UNBOUND).decide().open
    refuted = under("strict", REFUTED, target="staging")
    assert not Shelf(under("tiny"), refuted, model=UNBOUND).decide().open


@pytest.mark.parametrize(("what", "change"), [("contract", Change.CONTRACT_CHANGED), ("probes", Change.PROBES_CHANGED)])
def test_a_contract_or_probe_set_recorded_anew_shuts(what, change):
    name = {"contract": "tiny", "probes": "chats"}[what]
    shelf = Shelf(certificate())
    newer = record(what, name).model_copy(update={"digest": digest(what, "e")})
    shelf.state = replace(shelf.state, records=shelf.state.records.set((what, name), newer))
    assert whys(shelf.decide()) == [change]
    shelf.state = shelf.without(what, name)
    assert whys(shelf.decide()) == [change], "what nobody recorded is no yes either"


@pytest.mark.parametrize(
    "changes", [{"weights": digest("weights", "f")}, {"model": "assistant/2"}, {"model": "other/1"}]
)
def test_a_certificate_about_something_else_is_damage(changes):
    decision = Shelf(certificate(), certificate(**changes)).decide()
    assert (decision.why, whys(decision)) == (Why.TAMPERED, [Change.RECORD_DAMAGED])


def test_one_damaged_certificate_shuts_whatever_the_others_say():
    decision = Shelf(None, certificate()).decide()
    assert (decision.why, whys(decision)) == (Why.TAMPERED, [Change.RECORD_DAMAGED])
    assert "bytes changed" in decision.reasons[0]


def test_attestations_of_other_kinds_are_nobodys_certificate():
    shelf = Shelf(certificate())
    foreign = attested(7, predicate_type="https://slsa.dev/provenance/v1")
    shelf.state = replace(shelf.state, attestations=Map({KEY: (attested(0), foreign)}))
    known, damage = readable(MODEL, shelf.state, shelf.read)
    assert ([pair[0] for pair in known], damage) == ([attested(0)], [])


GRAVEST_FIRST = [
    (Change.WEIGHTS_CHANGED, Why.TAMPERED),
    (Change.SOURCE_GONE, Why.MISSING),
    (Change.RESTATED, Why.NO),
    (Change.UNDECIDED, Why.UNKNOWN),
]


def test_5_before_4_before_1_before_3():
    causes = [Cause(change, "it", "is so") for change, _ in GRAVEST_FIRST]
    for first, (_, why) in enumerate(GRAVEST_FIRST):
        assert Shelf(certificate()).decide(PRODUCTION, *reversed(causes[first:])).why is why


def test_what_does_not_shut_is_told_as_a_note():
    note = Cause(Change.VIEW_CHANGED, "view v", "defined anew")
    decision = Shelf(certificate()).decide(PRODUCTION, note)
    assert (decision.open, decision.notes, decision.reasons) == (True, (note,), ())


def test_a_restatement_shuts_unless_the_policy_says_warn():
    restated = Cause(Change.RESTATED, "snapshot s", "rows changed", ("2013-01-01: 1 row",))
    shelf = Shelf(certificate())
    assert "(2013-01-01: 1 row)" in shelf.decide(PRODUCTION, restated).reasons[0]
    warn = RefreshPolicy(on_restatement=OnRestatement.WARN)
    assert decide(MODEL, "production", [restated], shelf.examine(), warn, ()).notes == (restated,)


def test_the_decision_over_nothing_is_no():
    for examined in (Examined(()), Examined((Standing("tiny", None, ()),))):
        decision = decide(MODEL, "production", (), examined, RefreshPolicy(), ())
        assert (decision.open, decision.why) == (False, Why.UNKNOWN)


def test_a_promotion_needs_an_open_gate():
    shelf = Shelf(certificate())
    GateOpen(shelf.decide()).check(shelf.state)
    with pytest.raises(RequirementError, match="the gate of assistant/1 for production is shut") as caught:
        GateOpen(Shelf(certificate(REFUTED)).decide()).check(shelf.state)
    assert "REFUTED" in caught.value.reasons[0]


MEANWHILE = {
    "a newer word": lambda s: replace(s, attestations=Map({KEY: (*s.attestations[KEY], attested(1))})),
    "the certificate vanished": lambda s: replace(s, attestations=Map()),
    "another contract was bound": lambda s: replace(s, models=Map({KEY.name: (UNBOUND,)})),
    "the probes were replaced": lambda s: replace(s, records=s.records.delete(("probes", "chats"))),
}


@pytest.mark.parametrize("what", MEANWHILE)
def test_a_promotion_is_refused_when_the_ledger_moved_under_the_decision(what):
    shelf = Shelf(certificate())
    with pytest.raises(ConflictError, match="was recorded anew since it was found open"):
        GateOpen(shelf.decide()).check(MEANWHILE[what](shelf.state))


def test_a_promotion_is_refused_when_what_it_was_evaluated_on_was_compared_meanwhile():
    evaluated = Use(kind=UseKind.EVALUATED_ON, snapshot="e" * 64)
    shelf = Shelf(certificate(), model=MODEL.model_copy(update={"uses": (evaluated,)}))
    decision = shelf.decide()
    comparison = Comparison(commit=Commit(id="1"))
    compared = SourceCompared(at=AT, snapshot=evaluated.snapshot, files=digest("object", "3"), comparison=comparison)
    GateOpen(decision).check(apply(shelf.state, compared.model_copy(update={"snapshot": "f" * 64})))
    with pytest.raises(ConflictError, match="was recorded anew since it was found open"):
        GateOpen(decision).check(apply(shelf.state, compared))


def test_a_promotion_does_not_mind_other_models():
    shelf = Shelf(certificate())
    decision = shelf.decide()
    GateOpen(decision).check(replace(shelf.state, models=shelf.state.models.set("other", (MODEL,))))


def test_a_certificate_on_other_probes_than_the_contract_s_opens_nothing():
    easy = under("tiny", probes={"name": "easy", "digest": digest("probes"), "object": digest("object", "2")})
    decision = Shelf(easy).decide()
    assert (decision.open, decision.why) == (False, Why.UNKNOWN)
    assert Shelf(under("tiny"), easy).decide().open


def test_a_document_that_is_back_needs_no_new_certificate():
    loosened = {"name": "tiny", "digest": digest("contract", "e"), "object": digest("object", "1")}
    assert Shelf(under("tiny"), certificate(REFUTED, contract=loosened)).decide().open
    assert not Shelf(under("tiny", REFUTED), certificate(contract=loosened)).decide().open
