"""Which half span keeps a figure within a limit."""

from __future__ import annotations

import math

import numpy as np
import pytest

from snapline.contracts import bounds

INVERSES = {
    "log_ratio": (bounds.log_ratio, bounds.half_span_for_log_ratio),
    "tv": (bounds.tv, bounds.half_span_for_tv),
    "kl": (bounds.kl, bounds.half_span_for_kl),
    "jeffreys": (bounds.jeffreys, bounds.half_span_for_jeffreys),
    "chi2": (bounds.chi2, bounds.half_span_for_chi2),
    "effective sample share": (bounds.effective_sample_share, bounds.half_span_for_effective_sample_share),
    "squared hellinger": (bounds.squared_hellinger, bounds.half_span_for_squared_hellinger),
    "reward drift": (lambda s: bounds.reward_drift(s, 3.0), lambda x: bounds.half_span_for_reward_drift(x, 3.0)),
    "policy gradient": (
        lambda s: bounds.policy_gradient_bias(s, 2.0, 5.0),
        lambda x: bounds.half_span_for_policy_gradient_bias(x, 2.0, 5.0),
    ),
    "tv of an answer": (lambda s: bounds.tv_answer(s, 256), lambda x: bounds.half_span_for_tv_answer(x, 256)),
    "flip": (lambda s: 2 * s, bounds.half_span_of_flip),
}


@pytest.mark.parametrize("limit", [1e-16, 1e-9, 0.01, 0.3, 0.5, 0.97])
@pytest.mark.parametrize("name", INVERSES)
def test_the_half_span_that_keeps_a_limit_attains_it(name, limit):
    bound, inverse = INVERSES[name]
    found = inverse(limit)
    assert type(found) is float
    assert bound(found) == pytest.approx(limit, rel=2e-15, abs=0)


@pytest.mark.parametrize("name", ["kl", "jeffreys", "chi2", "log_ratio"])
def test_unbounded_divergences_can_be_held_to_large_limits(name):
    bound, inverse = INVERSES[name]
    limits = np.array([2.0, 90.0, 1e4])
    assert bound(inverse(limits)) == pytest.approx(limits, rel=1e-12)


@pytest.mark.parametrize("limit", [1e-12, 0.02, 1.0, 40.0])
def test_searched_inverses_never_exceed_the_limit(limit):
    assert bounds.kl(bounds.half_span_for_kl(limit)) <= limit
    assert bounds.jeffreys(bounds.half_span_for_jeffreys(limit)) <= limit


@pytest.mark.parametrize("name", INVERSES)
def test_arrays_go_element_by_element(name):
    limits = np.array([[0.1, 0.2, 0.9]])
    found = INVERSES[name][1](limits)
    assert found.shape == (1, 3)
    assert found[0] == pytest.approx([INVERSES[name][1](float(limit)) for limit in limits[0]], rel=1e-15)


@pytest.mark.parametrize("name", set(INVERSES) - {"effective sample share"})
def test_no_room_is_no_half_span_and_nonsense_is_refused(name):
    inverse = INVERSES[name][1]
    assert inverse(0.0) == 0.0
    assert math.isnan(inverse(math.nan))
    with pytest.raises(ValueError, match="at least 0"):
        inverse(-0.01)


@pytest.mark.parametrize("name", ["tv", "squared hellinger", "tv of an answer"])
def test_a_limit_of_one_or_more_asks_for_nothing(name):
    assert INVERSES[name][1](np.array([1.0, 7.0])).tolist() == [math.inf, math.inf]
    assert bounds.half_span_for_kl(math.inf) == math.inf


def test_a_share_of_samples_is_a_share():
    assert bounds.half_span_for_effective_sample_share(1.0) == 0.0
    assert bounds.half_span_for_effective_sample_share(0.0) == math.inf
    with pytest.raises(ValueError, match="share within 0 and 1"):
        bounds.half_span_for_effective_sample_share(1.01)


def test_the_half_span_that_keeps_a_clip_range():
    assert [round(bounds.half_span_for_clip(c, c), 4) for c in (0.1, 0.2, 0.28)] == [0.0477, 0.0912, 0.1234]
    assert bounds.half_span_for_clip(0.1, 9.0) == pytest.approx(-math.log(0.9) / 2)
    assert bounds.half_span_for_clip(1.0, 3.0) == pytest.approx(math.log(4) / 2)
    assert bounds.half_span_for_clip(np.array([0.1, 0.2]), np.array([0.1, 0.2])).shape == (2,)
