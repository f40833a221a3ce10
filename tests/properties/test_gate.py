"""Nothing but a clear yes opens the gate, whatever else is found."""

from __future__ import annotations

from certificates import IDENTITY, MODEL, attested, certificate
from hypothesis import given
from hypothesis import strategies as st

from snapline.contracts.gate import Examined, GateDecision, Standing, decide
from snapline.contracts.verdict import Verdict, combine
from snapline.lineage.invalidation import Cause, Change, Remedy, Why, effect
from snapline.lineage.view import OnRestatement, RefreshPolicy

POLICIES = st.builds(RefreshPolicy, on_restatement=st.sampled_from(OnRestatement))
CAUSES = st.lists(st.builds(Cause, st.sampled_from(Change), st.just("it"), st.just("is so")), max_size=5)
FOUND = st.none() | st.just((attested(0), certificate()))
STANDINGS = st.builds(Standing, st.just("tiny"), FOUND, CAUSES.map(tuple))
EXAMINED = st.builds(Examined, st.lists(STANDINGS, max_size=3).map(tuple), CAUSES.map(tuple))


def decided(causes: list[Cause], examined: Examined, policy: RefreshPolicy) -> GateDecision:
    return decide(MODEL, "production", causes, examined, policy, ())


@given(CAUSES, EXAMINED, POLICIES)
def test_open_means_a_certificate_and_no_cause_that_shuts(causes, examined, policy):
    decision = decided(causes, examined, policy)
    whys = {effect(cause.change, policy).shuts for cause in (*causes, *examined.causes)} - {None}
    found = any(standing.found for standing in examined.standings)
    assert decision.open == (found and not whys)
    assert decision.why is next((why for why in Why if why in whys), None if found else Why.UNKNOWN)
    assert len(decision.causes) + len(decision.notes) == len(causes) + len(examined.causes)


@given(st.sampled_from(Change), POLICIES)
def test_what_leaves_the_gate_open_asks_for_nothing_unless_a_rollout_asks(change, policy):
    row = effect(change, policy)
    asking = Remedy.RECOMPUTE if change is Change.REMEASURE_ASKED else Remedy.KEEP
    assert row.shuts is not None or row.remedy is asking


@given(st.lists(st.sampled_from(Verdict)))
def test_the_verdict_over_many_is_the_gravest_and_of_nothing_undecided(verdicts):
    gravest = [Verdict.REFUTED, Verdict.UNDECIDED, Verdict.CERTIFIED]
    assert combine(verdicts) is next((one for one in gravest if one in verdicts), Verdict.UNDECIDED)


@given(st.sampled_from(sorted(set(type(IDENTITY).model_fields) - {"libraries"})), st.data())
def test_any_difference_in_what_serves_is_another_identity(name, data):
    known = getattr(IDENTITY, name)
    values = {str: st.text(min_size=1), bool: st.booleans(), int: st.integers(1, 64), type(None): st.integers(1, 64)}
    value = data.draw(values[type(known)])
    other = IDENTITY.model_copy(update={name: value})
    assert (other.digest == IDENTITY.digest) == (known == value)
    more = IDENTITY.model_copy(update={"libraries": IDENTITY.libraries | {"triton": str(value)}})
    assert more.digest != IDENTITY.digest
