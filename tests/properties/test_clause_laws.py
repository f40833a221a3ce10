"""What each clause's figure must be of any two programs: exact small softmax models, drawn at random.

Where a clause says that its figure bounds something, that something is computed by enumeration.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exact_programs import (
    DISTANCES,
    HORIZON,
    SEEDS,
    SLACK,
    VOCABULARY,
    Model,
    Programs,
    clause,
    drawn,
    expected,
    model,
    near,
    programs,
    softmax,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from snapline.contracts import bounds
from snapline.contracts.clauses import Numerical, Runtime, Statistical
from snapline.contracts.clauses.diagnostics import ece_reference, ece_serving
from snapline.contracts.engines.protocol import Batching
from snapline.contracts.timings import PairedTiming, measured_timings

INVARIANCES = (
    "batch_invariance",
    "order",
    "repeat",
    "prefix_cache",
    "chunked_prefill",
    "threads",
    "tensor_parallel",
    "cuda_graphs",
)
PERFORMANCE = {"latency_ratio": "at_most", "throughput_ratio": "at_least", "peak_memory_ratio": "at_most"}

SERVING: dict[str, Any] = {
    "half_span": {"quantile": "0.9", "limit": "0.3"},
    "log_ratio": {"quantile": "0.9", "limit": "0.3"},
    "tv_token": "0.1",
    "tv_answer": {"horizon": 3, "limit": "0.1"},
    "reward_drift": {"range": ["0", "1"], "limit": "0.1", "horizon": 3},
    "policy_gradient_bias": {"advantage": "1", "score": "1", "limit": "0.1"},
    "greedy_flip_rate": "0.1",
    "greedy_divergence": {"within": 2, "at_most": "0.1"},
    "calibration_drift": {"bins": 4, "limit": "0.1"},
}


@given(pair=programs())
@pytest.mark.parametrize("word", SERVING)
def test_a_figure_lies_within_0_and_1_is_0_of_one_program_and_has_a_witness(word: str, pair: Programs) -> None:
    promise = clause(word, SERVING[word])
    seen = promise.relevant(pair.measured())
    units = promise.units(seen)
    assert units.shape == (len(pair.z),)
    assert ((units >= 0) & (units <= 1)).all()
    loud = seen.any_row(promise.loudness(seen) > -np.inf)
    assert (loud[units > 0] == 1).all()
    alike = promise.relevant(Programs(pair.z, pair.z, pair.tokens).measured())
    assert not promise.units(alike).any()
    assert (promise.loudness(alike) == -np.inf).all()


@given(pair=programs(), times=st.floats(1.01, 50))
def test_half_span_ignores_constants_and_grows_with_the_difference(pair: Programs, times: float) -> None:
    promise = clause("half_span", {"quantile": "0.9", "limit": "0.3"})
    difference = pair.served - pair.z
    far = Programs(pair.z, pair.z + times * difference + 3.0, pair.tokens)
    assert (promise.units(far.measured()) >= promise.units(pair.measured())).all()
    spans = (difference.max(-1) - difference.min(-1)).max(-1) / 2
    clear = np.abs(spans - 0.3) > SLACK
    assert (promise.units(pair.measured()) == (spans > 0.3))[clear].all()


@given(pair=programs())
def test_log_ratio_breaks_only_where_half_the_half_span_does(pair: Programs) -> None:
    seen = pair.measured()
    ratio = clause("log_ratio", {"quantile": "0.9", "limit": "0.4"}).units(seen)
    assert (ratio <= clause("half_span", {"quantile": "0.9", "limit": "0.19999999"}).units(seen)).all()
    p, q = (np.take_along_axis(softmax(z), pair.tokens[..., None], -1)[..., 0] for z in (pair.z, pair.served))
    distance = np.abs(np.log(q / p)).max(-1)
    clear = np.abs(distance - 0.4) > SLACK
    assert (ratio == (distance > 0.4))[clear].all()


@given(pair=programs(), seed=SEEDS)
def test_tv_token_bounds_any_reward_of_a_token_and_one_attains_it(pair: Programs, seed: int) -> None:
    units = clause("tv_token", "0.1").units(pair.measured())
    moved = softmax(pair.served) - softmax(pair.z)
    reward = np.random.default_rng(seed).uniform(size=pair.z.shape)
    assert (np.abs((moved * reward).sum(-1)).mean(-1) <= units + SLACK).all()
    assert (moved * (moved > 0)).sum(-1).mean(-1) == pytest.approx(units, abs=SLACK)


@given(seeds=st.tuples(SEEDS, SEEDS), distance=DISTANCES, horizon=st.integers(1, HORIZON + 1))
def test_tv_answer_expects_the_distance_of_answers_cut_at_the_horizon(
    seeds: tuple[int, int], distance: float, horizon: int
) -> None:
    reference = model(seeds[0], 1.0)
    serving = near(reference, seeds[1], distance)
    promise = clause("tv_answer", {"horizon": horizon, "limit": "0.1"})
    _, p, q = drawn(reference, serving, min(horizon, HORIZON))
    assert p.sum() == pytest.approx(1)
    assert expected(promise, reference, serving) == pytest.approx(np.abs(p - q).sum() / 2, abs=SLACK)
    assert expected(promise, reference, reference) == 0


@given(seed=SEEDS, horizon=st.integers(1, HORIZON))
def test_sampler_drift_expects_nothing_of_an_honest_sampler_wherever_it_stops(seed: int, horizon: int) -> None:
    serving = model(seed, 2.0)
    promise = clause("sampler_drift", {"horizon": horizon, "limit": "0.1"})
    seen, cooler, honest = drawn(lambda seen: 2 * serving(seen), serving, horizon)
    surplus = 2 * promise.units(promise.relevant(seen)) - 1
    assert honest @ surplus == pytest.approx(0, abs=SLACK)
    # One that halves the temperature draws the most likely token oftener, one that draws evenly more rarely.
    assert cooler @ surplus > 0
    assert drawn(lambda _: np.zeros(VOCABULARY), serving, horizon)[1] @ surplus < 0


@given(seeds=st.tuples(SEEDS, SEEDS, SEEDS), distance=DISTANCES, ends=st.tuples(st.integers(-3, 2), st.integers(3, 9)))
def test_reward_drift_bounds_every_reward_in_the_range_and_one_attains_it(
    seeds: tuple[int, int, int], distance: float, ends: tuple[int, int]
) -> None:
    reference = model(seeds[0], 1.0)
    serving = near(reference, seeds[1], distance)
    low, high = ends
    promise = clause("reward_drift", {"range": [str(low), str(high)], "limit": "0.5", "horizon": HORIZON})
    _, p, q = drawn(reference, serving, HORIZON)
    most = (high - low) * expected(promise, reference, serving)
    reward = np.random.default_rng(seeds[2]).uniform(low, high, size=len(p))
    assert abs((q - p) @ reward) <= most + SLACK
    assert (q - p) @ np.where(q > p, high, low) == pytest.approx(most, abs=SLACK)
    # So the promised distance is the promised drift.
    assert float(promise.allowed) * (high - low) == pytest.approx(0.5)


@given(seed=SEEDS, prompts=st.integers(1, 60), shift=st.floats(-2, 2), alpha=st.sampled_from([0.2, 0.001]))
def test_measured_drift_is_the_same_up_and_down_and_in_any_unit(
    seed: int, prompts: int, shift: float, alpha: float
) -> None:
    rng = np.random.default_rng(seed)
    reference = rng.uniform(-2, 2, prompts)
    serving = np.clip(reference + shift * rng.uniform(size=prompts), -2, 2)
    columns = {"reference": "a", "serving": "b"}
    promise = clause("measured_drift", {"range": ["-2", "2"], "limit": "0.1", "rewards": columns})
    scaled = clause("measured_drift", {"range": ["-20", "20"], "limit": "1", "rewards": columns})
    assert promise.allowed == scaled.allowed
    alike = Programs(np.zeros((prompts, 1, 2)), np.zeros((prompts, 1, 2)), np.zeros((prompts, 1), int))
    units = promise.units(alike.measured(a=reference, b=serving))
    back = promise.units(alike.measured(a=serving, b=reference))
    assert units == pytest.approx(scaled.units(alike.measured(a=10 * reference, b=10 * serving)))
    assert promise.estimate(units) == pytest.approx(abs(np.mean(serving - reference)) / 4)
    for limit in (promise.lower, promise.upper):
        assert limit(units, alpha) == pytest.approx(limit(back, alpha), abs=SLACK)
    assert promise.lower(units, alpha) <= promise.estimate(units) + SLACK
    assert promise.estimate(units) <= promise.upper(units, alpha) + SLACK
    assert promise.best_upper(prompts, alpha) <= promise.upper(units, alpha) + SLACK


@given(pair=programs(), seed=SEEDS)
def test_policy_gradient_bias_bounds_the_bias_of_any_advantage_and_score(pair: Programs, seed: int) -> None:
    promise = clause("policy_gradient_bias", {"advantage": "1.5", "score": "2", "limit": "0.3"})
    assert float(promise.allowed) * 6 == pytest.approx(0.3)
    rng = np.random.default_rng(seed)
    advantage = rng.uniform(-1.5, 1.5, size=pair.z.shape)
    score = rng.normal(size=(*pair.z.shape, 5))
    score *= 2 / np.linalg.norm(score, axis=-1, keepdims=True)
    moved = (softmax(pair.served) - softmax(pair.z)) * advantage
    bias = np.linalg.norm((moved[..., None] * score).sum(-2), axis=-1).mean(-1)
    assert (bias <= 6 * promise.units(pair.measured()) + SLACK).all()


@given(pair=programs(), seed=SEEDS)
def test_greedy_flip_rate_counts_other_choices_whatever_the_tokens_are_called(pair: Programs, seed: int) -> None:
    promise = clause("greedy_flip_rate", "0.1")
    units = promise.units(pair.measured())
    assert units == pytest.approx((pair.z.argmax(-1) != pair.served.argmax(-1)).mean(-1))
    named = np.random.default_rng(seed).permutation(pair.z.shape[-1])
    renamed = Programs(pair.z[..., named], pair.served[..., named], pair.tokens)
    assert (promise.units(renamed.measured()) == units).all()


@given(pair=programs())
def test_flip_exposure_bounds_the_flips_of_every_engine_within_the_half_span(pair: Programs) -> None:
    seen = pair.measured()
    widest = format(seen.columns["half_span"].max() * (1 + 1e-12) + 1e-12, ".15f")
    exposure = clause("flip_exposure", {"half_span": widest, "limit": "0.2"})
    units = exposure.units(seen)
    assert (units >= clause("greedy_flip_rate", "0.1").units(seen)).all()
    assert ((units >= 0) & (units <= 1)).all()
    # It is the reference's alone, and grows with the half span.
    assert (exposure.units(Programs(pair.z, pair.z, pair.tokens).measured()) == units).all()
    narrower = clause("flip_exposure", {"half_span": "0", "limit": "0.2"}).units(seen)
    assert (narrower <= units).all()
    exposed = bounds.greedy_flip_possible(float(widest), seen.columns["margin"])
    assert units == pytest.approx(seen.mean(exposed))


@given(seeds=st.tuples(SEEDS, SEEDS), distance=DISTANCES, within=st.integers(1, 6))
def test_greedy_divergence_is_where_greedy_answers_part(seeds: tuple[int, int], distance: float, within: int) -> None:
    def greedy(one: Model) -> tuple[int, ...]:
        seen: tuple[int, ...] = ()
        while len(seen) < 6:
            seen = (*seen, int(one(seen).argmax()))
        return seen

    reference = model(seeds[0], 1.0)
    serving = near(reference, seeds[1], distance)
    given_answer = greedy(reference)
    z, served = (np.stack([one(given_answer[:i]) for i in range(6)])[None] for one in (reference, serving))
    seen = Programs(z, served, np.array([given_answer])).measured()
    parted = greedy(serving)[:within] != given_answer[:within]
    assert clause("greedy_divergence", {"within": within, "at_most": "0.3"}).units(seen).tolist() == [parted]


@given(pair=programs(), bins=st.integers(1, 12))
def test_calibration_drift_bounds_the_change_of_the_calibration_error(pair: Programs, bins: int) -> None:
    def error(z: np.ndarray) -> float:
        confidence, right = softmax(z).max(-1), z.argmax(-1) == pair.tokens
        inside = [(np.floor(confidence * bins) == b) | ((b == bins - 1) & (confidence == 1)) for b in range(bins)]
        return sum(abs(np.where(rows, right - confidence, 0.0).mean()) for rows in inside)

    seen = pair.measured()
    units = clause("calibration_drift", {"bins": bins, "limit": "0.1"}).units(seen)
    assert abs(error(pair.served) - error(pair.z)) <= 2 * units.mean() + SLACK
    if bins == 10:
        assert (ece_reference(seen), ece_serving(seen)) == pytest.approx((error(pair.z), error(pair.served)))


@settings(max_examples=25)
@given(seed=SEEDS, bit=st.sampled_from([*range(30), 31]))
@pytest.mark.parametrize("word", INVARIANCES)
def test_an_invariance_flags_any_differing_bit_and_no_other_prompt(word: str, seed: int, bit: int) -> None:
    more = {"against": 2} if word in ("threads", "tensor_parallel") else {}
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(4, 3, 5)).astype(np.float32)
    served = z.copy()
    prompt, *place = (int(rng.integers(size)) for size in z.shape)
    served.view(np.uint32)[(prompt, *place)] ^= np.uint32(1 << bit)
    seen = Programs(z, served, np.zeros((4, 3), int)).measured()
    only_there = [number == prompt for number in range(4)]
    assert clause(word, {"bitwise": True, **more}).units(seen).tolist() == only_there
    assert clause(word, {"half_span": "0", **more}).units(seen).tolist() == only_there
    largest = np.abs(served.astype(np.float64) - z).max()
    wide = clause(word, {"half_span": format(np.ceil(min(largest, 1e15)), ".0f"), **more})
    assert wide.units(seen).any() == (largest / 2 > 1e15)


@given(seed=SEEDS, times=st.sampled_from([0.25, 2.0, 1024.0]), runs=st.integers(1, 9))
@pytest.mark.parametrize("word", PERFORMANCE)
def test_a_performance_ratio_is_paired_and_the_same_in_any_unit(word: str, seed: int, times: float, runs: int) -> None:
    promise = clause(word, {PERFORMANCE[word]: "1.25"})
    rng = np.random.default_rng(seed)
    ours, theirs = rng.integers(1, 2**30, (2, runs))

    def units(reference: np.ndarray, serving: np.ndarray) -> list[float]:
        timings = [
            PairedTiming(
                batching=batching,
                prompts=(str(run),),
                tokens=8,
                seconds_reference=float(reference[run]),
                seconds_serving=float(serving[run]),
                peak_reference=int(reference[run]),
                peak_serving=int(serving[run]),
            )
            for run in range(runs)
            for batching in Batching
        ]
        found: list[float] = promise.units(promise.relevant(measured_timings(timings))).tolist()
        return found

    found = units(4 * ours, 4 * theirs)
    ratio = ours / theirs if word == "throughput_ratio" else theirs / ours
    assert found == list(ratio < 1.25 if word == "throughput_ratio" else ratio > 1.25)
    assert units(4 * ours * times, 4 * theirs * times) == found
    better = units(4 * ours, 2 * theirs)
    assert all(after <= before for after, before in zip(better, found, strict=True))


LAWS = {
    "half_span": test_half_span_ignores_constants_and_grows_with_the_difference,
    "log_ratio": test_log_ratio_breaks_only_where_half_the_half_span_does,
    "tv_token": test_tv_token_bounds_any_reward_of_a_token_and_one_attains_it,
    "tv_answer": test_tv_answer_expects_the_distance_of_answers_cut_at_the_horizon,
    "sampler_drift": test_sampler_drift_expects_nothing_of_an_honest_sampler_wherever_it_stops,
    "reward_drift": test_reward_drift_bounds_every_reward_in_the_range_and_one_attains_it,
    "measured_drift": test_measured_drift_is_the_same_up_and_down_and_in_any_unit,
    "policy_gradient_bias": test_policy_gradient_bias_bounds_the_bias_of_any_advantage_and_score,
    "greedy_flip_rate": test_greedy_flip_rate_counts_other_choices_whatever_the_tokens_are_called,
    "flip_exposure": test_flip_exposure_bounds_the_flips_of_every_engine_within_the_half_span,
    "greedy_divergence": test_greedy_divergence_is_where_greedy_answers_part,
    "calibration_drift": test_calibration_drift_bounds_the_change_of_the_calibration_error,
    **dict.fromkeys(INVARIANCES, test_an_invariance_flags_any_differing_bit_and_no_other_prompt),
    **dict.fromkeys(PERFORMANCE, test_a_performance_ratio_is_paired_and_the_same_in_any_unit),
}


def test_every_clause_of_the_language_has_its_law() -> None:
    groups = (Numerical, Statistical, Runtime)
    declared = {name for group in groups for name in group.model_fields if name != "at_most"}
    assert set(LAWS) == declared
    assert all(globals()[law.__name__] is law and law.__name__.startswith("test_") for law in LAWS.values())
