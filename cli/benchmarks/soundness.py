"""Whether limits hold as often as they say, by simulation, and how many prompts they need.

Every simulated contract is violated by a hair: its limit lies just under the true figure, which is where an estimator
is likeliest to certify wrongly. The share of contracts it certifies must stay within the stated error probability.
Estimators that are known to be wrong run beside them, and must be caught.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from snapline.cli.benchmarks import traffic
from snapline.cli.benchmarks.measuring import Row
from snapline.cli.benchmarks.traffic import ALPHA, Floats, Kind, Traffic
from snapline.contracts import estimators

HAIR = 1e-9
POWER = 0.9
_CHUNK = 250
_POWER_CONTRACTS = 200
_FAMILY = 6
_LOOKS = 10

Certifies = Callable[[Floats, float], bool]
Draw = Callable[[np.random.Generator, int], Floats]


@dataclass(frozen=True, slots=True)
class Estimator:
    """One estimator, held to some kinds of traffic.

    Attributes:
        certifies: Whether its limit at ALPHA for one contract's values is at or under the limit given.
        kinds: The traffic it is held to, by name.
        sizes: How many prompts a contract has; an equal share of the contracts each.
        in_prompts: It takes positions, of shape (prompts, positions), rather than one figure per prompt.
    """

    name: str
    certifies: Certifies
    kinds: Mapping[str, Kind]
    sizes: tuple[int, ...] = (16, 40, 120)
    in_prompts: bool = False


def _mean(values: Floats, limit: float) -> bool:
    return estimators.mean_upper(values, ALPHA) <= limit


def _rate(values: Floats, limit: float) -> bool:
    return estimators.rate_upper(int(values.sum()), len(values), ALPHA) <= limit


def _quantile(values: Floats, limit: float) -> bool:
    return estimators.quantile_upper(values, traffic.QUANTILE, ALPHA) <= limit


def _paired(values: Floats, limit: float) -> bool:
    return estimators.paired_mean_upper(values, ALPHA) <= limit


def _hoeffding(values: Floats, limit: float) -> bool:
    return estimators.hoeffding_upper(values, ALPHA) <= limit


def _bernstein(values: Floats, limit: float) -> bool:
    return estimators.empirical_bernstein_upper(values, ALPHA) <= limit


def _sequence(values: Floats, limit: float) -> bool:
    return bool((estimators.mean_sequence(values, ALPHA) <= limit).any())


def _clustered(values: Floats, limit: float) -> bool:
    given = ~np.isnan(values)
    clusters = np.broadcast_to(np.arange(len(values))[:, np.newaxis], values.shape)
    return estimators.clustered_mean_upper(values[given], clusters[given], ALPHA) <= limit


SOUND = (
    Estimator("rate_upper", _rate, traffic.RATES),
    Estimator("quantile_upper", _quantile, traffic.QUANTILES, sizes=(30, 60, 200)),
    Estimator("mean_upper", _mean, traffic.MEANS),
    Estimator("clustered_mean_upper", _clustered, traffic.IN_PROMPTS, in_prompts=True),
    Estimator("paired_mean_upper", _paired, traffic.DIFFERENCES),
    Estimator("empirical_bernstein_upper", _bernstein, traffic.MEANS, sizes=(40, 120, 400)),
    Estimator("hoeffding_upper", _hoeffding, traffic.MEANS),
    Estimator("mean_sequence, every look", _sequence, traffic.MEANS, sizes=(40, 120, 400)),
)


def _normal(values: Floats, limit: float) -> bool:
    return float(values.mean() + 1.645 * values.std(ddof=1) / math.sqrt(len(values))) <= limit


def _largest(values: Floats, limit: float) -> bool:
    return float(values.max()) <= limit


def _positions(values: Floats, limit: float) -> bool:
    return _mean(values[~np.isnan(values)], limit)


def _peeking(values: Floats, limit: float) -> bool:
    return any(_rate(values[:seen], limit) for seen in range(_LOOKS, len(values) + 1, _LOOKS))


UNSOUND = (
    Estimator("mean + 1.645 standard errors", _normal, {"heavy tails, clipped": traffic.heavy_tails}),
    Estimator("the largest of n as a quantile", _largest, {"two points": traffic.edge_of_the_quantile}, sizes=(10, 20)),
    Estimator("positions taken as independent", _positions, traffic.IN_PROMPTS, sizes=(16, 40), in_prompts=True),
    Estimator("rate_upper at every tenth prompt", _peeking, {"events": traffic.events}, sizes=(200,)),
)


def measure(contracts: int, on_progress: Callable[[str, int, int], None] = lambda *_: None) -> list[Row]:
    """Return how often each estimator certifies a violated clause, and how many prompts it needs for one that holds.

    Args:
        contracts: Simulated contracts per estimator and kind of traffic.
        on_progress: Told what is measured, how much is done and of how much.
    """
    rows: list[Row] = []
    for done, estimator in enumerate((*SOUND, *UNSOUND)):
        on_progress(estimator.name, done, len(SOUND) + len(UNSOUND) + 2)
        rows += caught(estimator, contracts) if estimator in UNSOUND else soundness(estimator, contracts)
    on_progress("families", len(SOUND) + len(UNSOUND), len(SOUND) + len(UNSOUND) + 2)
    rows += families(contracts)
    on_progress("power", len(SOUND) + len(UNSOUND) + 1, len(SOUND) + len(UNSOUND) + 2)
    return rows + power(min(contracts, _POWER_CONTRACTS))


def soundness(estimator: Estimator, contracts: int) -> list[Row]:
    """Return a row for each kind of traffic: the share of violated clauses certified, which must not exceed ALPHA.

    The simulation itself is allowed three binomial standard errors.
    """
    return [_held(estimator.name, name, wrong, contracts) for name, wrong in _wrong(estimator, contracts)]


def caught(estimator: Estimator, contracts: int) -> list[Row]:
    """Return a row for each kind of traffic on which a wrong estimator must be seen to be wrong."""
    most = _allowed(contracts)
    return [
        Row(
            "control",
            f"{estimator.name}: {name}",
            100 * wrong / contracts,
            "% wrong",
            target=f"caught: over {100 * most:.2f}%",
            met=wrong / contracts > most,
        )
        for name, wrong in _wrong(estimator, contracts)
    ]


def families(contracts: int) -> list[Row]:
    """Return rows for contracts of six clauses on the same prompts, half of them violated by a hair.

    A contract is wrong when any violated clause is certified; the others hold with room, so that Holm's procedure
    reaches its larger shares of the level.
    """
    wrong = dict.fromkeys(("holm", "bonferroni"), 0)
    random = _random("families")
    for _ in range(contracts):
        p_values, violated = _clauses(random, shared=random.random(60))
        wrong["holm"] += bool((estimators.holm(p_values, ALPHA) & violated).any())
        shares = estimators.bonferroni(np.ones(_FAMILY), ALPHA)
        wrong["bonferroni"] += bool(((p_values <= shares) & violated).any())
    return [_held(name, f"{_FAMILY} clauses on the same prompts", count, contracts) for name, count in wrong.items()]


def power(contracts: int) -> list[Row]:
    """Return how many prompts certify a comfortable margin in nine contracts of ten, beside Hoeffding's."""
    rows = []
    for what, draw, tried in _COMFORTABLE:
        needed = {name: _prompts(certifies, draw, contracts) for name, certifies in tried.items()}
        rows += [
            Row("power", f"{name}: {what}", n, "prompts", n / needed["Hoeffding"], "Hoeffding")
            for name, n in needed.items()
        ]
    return rows


def _held(name: str, kind: str, wrong: int, contracts: int) -> Row:
    most = _allowed(contracts)
    return Row(
        "soundness",
        f"{name}: {kind}",
        100 * wrong / contracts,
        "% wrong",
        target=f"at most {100 * most:.2f}%",
        met=wrong / contracts <= most,
    )


def _allowed(contracts: int) -> float:
    return ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / contracts)


def _random(*names: str) -> np.random.Generator:
    return np.random.default_rng([crc32(name.encode()) for name in names])


def _wrong(estimator: Estimator, contracts: int) -> Iterator[tuple[str, int]]:
    """Yield how many violated contracts were certified, by kind of traffic."""
    for name, kind in estimator.kinds.items():
        random, wrong = _random(estimator.name, name), 0
        for turn, n in enumerate(estimator.sizes):
            left = contracts * (turn + 1) // len(estimator.sizes) - contracts * turn // len(estimator.sizes)
            for first in range(0, left, _CHUNK):
                drawn = kind(random, min(_CHUNK, left - first), n)
                wrong += _certified(estimator, drawn if estimator.in_prompts else drawn.per_prompt())
        yield name, wrong


def _certified(estimator: Estimator, drawn: Traffic) -> int:
    pairs = zip(drawn.values, (drawn.truth - HAIR).tolist(), strict=True)
    return sum(estimator.certifies(values, limit) for values, limit in pairs)


def _clauses(random: np.random.Generator, shared: Floats) -> tuple[Floats, NDArray[np.bool_]]:
    """Return p-values of six clauses on the same prompts, by turns rates and means, and which are violated."""
    p_values, violated = np.ones(_FAMILY), np.arange(_FAMILY) < _FAMILY // 2
    for clause in range(_FAMILY):
        figure = random.uniform(0.01, 0.3)
        limit = figure - HAIR if violated[clause] else figure + 0.4
        values = (np.where(random.random(len(shared)) < 0.5, shared, random.random(len(shared))) < figure) * 1.0
        if clause % 2:
            p_values[clause] = estimators.rate_p_value(int(values.sum()), len(values), limit)
        else:
            p_values[clause] = estimators.mean_p_value(values, limit)
    return p_values, violated


def _prompts(certifies: Callable[[Floats], bool], draw: Draw, contracts: int) -> int:
    """Return the smallest number of prompts at which a share POWER of contracts is certified."""

    def missed(n: int) -> float:
        random = _random("power", str(n))
        return sum(not certifies(draw(random, n)) for _ in range(contracts)) / contracts

    found = estimators.prompts_needed(missed, 1 - POWER)
    if found is None:
        raise AssertionError("no number of prompts certified a clause that holds")
    return found


def _small_figures(random: np.random.Generator, n: int) -> Floats:
    return random.beta(1, 99, n)


def _few_events(random: np.random.Generator, n: int) -> Floats:
    return (random.random(n) < 0.01).astype(np.float64)


def _above_the_quantile(random: np.random.Generator, n: int) -> Floats:
    return (random.random(n) < 0.03).astype(np.float64)


def _small_differences(random: np.random.Generator, n: int) -> Floats:
    return random.uniform(-0.1, 0.1, n)


# What holds with room, how its prompts are drawn, and who is asked to certify it.
_COMFORTABLE: tuple[tuple[str, Draw, Mapping[str, Callable[[Floats], bool]]], ...] = (
    (
        "events, 1% within 5%",
        _few_events,
        {"rate_upper": lambda values: _rate(values, 0.05), "Hoeffding": lambda values: _hoeffding(values, 0.05)},
    ),
    (
        ".9 quantile, 3% above",
        _above_the_quantile,
        {
            "quantile_upper": lambda values: _quantile(values, 0.0),
            "Hoeffding": lambda values: _hoeffding(values, 1 - traffic.QUANTILE),
        },
    ),
    (
        "mean .01 within .02",
        _small_figures,
        {
            "mean_upper": lambda values: _mean(values, 0.02),
            "mean_sequence": lambda values: _sequence(values, 0.02),
            "empirical_bernstein_upper": lambda values: _bernstein(values, 0.02),
            "Hoeffding": lambda values: _hoeffding(values, 0.02),
        },
    ),
    (
        "differences of +-.1, mean within .02",
        _small_differences,
        {
            "paired_mean_upper": lambda values: _paired(values, 0.02),
            "Hoeffding": lambda values: _hoeffding((1 + values) / 2, 0.51),
        },
    ),
)
