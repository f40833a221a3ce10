"""Simulated traffic whose true figures are known exactly: what a soundness bench certifies limits of.

A kind draws many contracts at once. Each has a distribution of its own, drawn too, so that one run covers a whole
family of them, and n prompts from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

ALPHA = 0.05  # the error probability that the bench states
POSITIONS = 32
QUANTILE = 0.9
_STAY = 0.9  # how likely a burst goes on


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was drawn.

    Attributes:
        values: Shape (contracts, prompts), or (contracts, prompts, positions) with NaN where a prompt is shorter.
        truth: Shape (contracts,): the true figure of each contract.
    """

    values: Floats
    truth: Floats

    def per_prompt(self) -> Traffic:
        """Return the same with one figure per prompt: the mean over its positions."""
        return Traffic(np.nanmean(self.values, axis=2), self.truth) if self.values.ndim == 3 else self


Kind = Callable[[np.random.Generator, int, int], Traffic]


def rare_events(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw events near 0, where n prompts show none to a handful."""
    rate = np.minimum(_each(random, 0.5, 8.0, contracts) / n, 0.9)
    return _of(random.random((contracts, n)) < rate, rate)


def edge_of_no_event(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw the worst rate for an exact limit: n prompts show no event with probability ALPHA, all but a hair."""
    rate = np.full((contracts, 1), 1 - ALPHA ** (1 / n) + 1e-8)
    return _of(random.random((contracts, n)) < rate, rate)


def events(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw events of any rate."""
    rate = _each(random, 0.05, 0.95, contracts)
    return _of(random.random((contracts, n)) < rate, rate)


def betas(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw smooth figures, from almost two-valued to almost constant."""
    a, b = (np.exp(_each(random, np.log(0.05), np.log(20), contracts)) for _ in range(2))
    return _of(random.beta(a, b, (contracts, n)), a / (a + b))


def heavy_tails(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw figures with a power-law tail, cut off at 1."""
    values, mean = _clipped_lomax(random, contracts, n)
    return _of(values, mean)


def rare_jumps(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw the worst two points: a constant that looks safe, and a jump to 1 that n prompts often do not show."""
    usual, rate = _each(random, 0.0, 0.3, contracts), np.minimum(_each(random, 0.5, 8.0, contracts) / n, 0.9)
    return _of(np.where(random.random((contracts, n)) < rate, 1.0, usual), usual + (1 - usual) * rate)


def clustered(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw positions that share their prompt's rate; the higher it is, the shorter the prompt."""
    a, b = (np.exp(_each(random, np.log(0.1), np.log(3), contracts)) for _ in range(2))
    rate = random.beta(a, b, (contracts, n))[..., np.newaxis]
    positions = (random.random((contracts, n, POSITIONS), dtype=np.float32) < rate).astype(np.float64)
    positions[np.arange(POSITIONS) > (POSITIONS - 1) * (1 - rate)] = np.nan
    return _of(positions, a / (a + b))


def bursts(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw positions in bursts: a Markov chain inside each prompt."""
    inside, rate, _ = _chain(random, contracts, n)
    return _of(inside, rate)


def prompts_with_bursts(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw whether a prompt has a burst anywhere."""
    inside, _, anywhere = _chain(random, contracts, n)
    return _of(inside.any(axis=2), anywhere)


def excesses(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw whether a heavy-tailed figure is above a limit."""
    shape, limit = _each(random, 0.5, 2.0, contracts), np.exp(_each(random, 0.0, 6.0, contracts))
    return _of(_lomax(random, shape, n) > limit, (1 + limit) ** -shape)


def long_tailed_values(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw unbounded figures, some without a mean, for their quantile."""
    shape = _each(random, 0.5, 3.0, contracts)
    return _of(_lomax(random, shape, n), _lomax_above(1 - QUANTILE, shape))


def ties(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw figures that take few values, for their quantile."""
    shape = _each(random, 0.5, 3.0, contracts)
    return _of(np.ceil(_lomax(random, shape, n)), np.ceil(_lomax_above(1 - QUANTILE, shape)))


def edge_of_the_quantile(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw the worst two points of a quantile: 0 a hair less often than would make it the quantile, else 1."""
    return _of(random.random((contracts, n)) >= QUANTILE - 1e-9, np.ones((contracts, 1)))


def burst_heights(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw the height of a prompt's bursts, 0 without one, for its quantile."""
    inside, _, anywhere = _chain(random, contracts, n)
    shape = _each(random, 0.5, 3.0, contracts)
    heights = inside.any(axis=2) * (1 + _lomax(random, shape, n))
    share = np.minimum((1 - QUANTILE) / anywhere, 1.0)
    return _of(heights, np.where(anywhere > 1 - QUANTILE, 1 + _lomax_above(share, shape), 0.0))


def one_sided_wins(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw differences of -1, 0 and 1, most of them 0."""
    up, down = (_each(random, 0.0, 0.3, contracts) for _ in range(2))
    u = random.random((contracts, n))
    return _of((u < up) * 1.0 - (u > 1 - down), up - down)


def shared_difficulty(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw differences of two figures that the prompt's difficulty moves together."""
    one, other = (np.exp(_each(random, np.log(0.2), np.log(5), contracts)) for _ in range(2))
    difficulty = random.random((contracts, n))
    return _of(difficulty**one - difficulty**other, 1 / (1 + one) - 1 / (1 + other))


def heavy_tailed_differences(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw differences with a power-law tail either way, cut off at 1."""
    size, mean = _clipped_lomax(random, contracts, n)
    up = _each(random, 0.0, 1.0, contracts)
    return _of(np.where(random.random((contracts, n)) < up, size, -size), (2 * up - 1) * mean)


def differences_of_bursts(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw differences of two programs' shares of positions in a burst."""
    (one, rate, _), (other, other_rate, _) = (_chain(random, contracts, n) for _ in range(2))
    return _of(one.mean(axis=2) - other.mean(axis=2), rate - other_rate)


def rare_losses(random: np.random.Generator, contracts: int, n: int) -> Traffic:
    """Draw differences that are a small gain, and rarely 1."""
    gain, rate = _each(random, 0.0, 0.3, contracts), np.minimum(_each(random, 0.5, 8.0, contracts) / n, 0.9)
    return _of(np.where(random.random((contracts, n)) < rate, 1.0, -gain), rate - gain * (1 - rate))


IN_PROMPTS: Mapping[str, Kind] = {"clustered": clustered, "bursts": bursts}
MEANS: Mapping[str, Kind] = {
    "events near 0": rare_events,
    "events": events,
    "beta": betas,
    "heavy tails, clipped": heavy_tails,
    "rare jumps": rare_jumps,
    **IN_PROMPTS,
}
RATES: Mapping[str, Kind] = {
    "events near 0": rare_events,
    "two points": edge_of_no_event,
    "events": events,
    "heavy tails above a limit": excesses,
    "prompts with bursts": prompts_with_bursts,
}
QUANTILES: Mapping[str, Kind] = {
    "heavy tails": long_tailed_values,
    "ties": ties,
    "two points": edge_of_the_quantile,
    "heights of bursts": burst_heights,
}
DIFFERENCES: Mapping[str, Kind] = {
    "wins and losses": one_sided_wins,
    "shared difficulty": shared_difficulty,
    "heavy tails, clipped": heavy_tailed_differences,
    "rare losses": rare_losses,
    "bursts": differences_of_bursts,
}


def _each(random: np.random.Generator, low: float, high: float, contracts: int) -> Floats:
    """Draw a parameter for each contract, of shape (contracts, 1)."""
    return random.uniform(low, high, (contracts, 1))


def _of(values: ArrayLike, truth: Floats) -> Traffic:
    return Traffic(np.asarray(values, np.float64), truth[:, 0])


def _lomax(random: np.random.Generator, shape: Floats, n: int) -> Floats:
    return np.asarray((1 - random.random((len(shape), n))) ** (-1 / shape) - 1)


def _lomax_above(share: Floats | float, shape: Floats) -> Floats:
    """Return what a Lomax variable of that shape exceeds with that probability."""
    return np.asarray(share ** (-1 / shape) - 1)


def _clipped_lomax(random: np.random.Generator, contracts: int, n: int) -> tuple[Floats, Floats]:
    """Return min(1, scale X) for Lomax X, and its mean: the integral of its tail from 0 to 1."""
    shape, scale = _each(random, 1.05, 2.0, contracts), np.exp(_each(random, np.log(1e-3), np.log(0.1), contracts))
    mean = scale / (shape - 1) * (1 - (1 + 1 / scale) ** (1 - shape))
    return np.minimum(1.0, scale * _lomax(random, shape, n)), mean


def _chain(random: np.random.Generator, contracts: int, n: int) -> tuple[NDArray[np.bool_], Floats, Floats]:
    """Return which positions are inside a burst, the rate of that, and how likely a prompt has one anywhere."""
    rate = _each(random, 0.005, 0.3, contracts)
    start = (1 - _STAY) * rate / (1 - rate)  # the chain begins, and stays, in its stationary distribution
    inside = np.empty((contracts, n, POSITIONS), dtype=np.bool_)
    inside[..., 0] = random.random((contracts, n)) < rate
    for position in range(1, POSITIONS):
        goes_on = random.random((contracts, n)) < np.where(inside[..., position - 1], _STAY, start)
        inside[..., position] = goes_on
    return inside, rate, 1 - (1 - rate) * (1 - start) ** (POSITIONS - 1)
