"""Diagnostics: figures of the distance between two distributions, reported and never promised.

A finite sample says nothing distribution-free about the mean of a figure without a bound, so these have no interval and
no verdict. To promise, limit the half span, which bounds each distance, or the total variation distance. The two
calibration errors are here as points: `calibration_drift` bounds how far apart they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated

import numpy as np
from pydantic import AfterValidator, BeforeValidator

from snapline.contracts.clauses.calibration_drift import calibration_error
from snapline.contracts.clauses.protocol import Figures, Measured

_LARGEST_EXPONENT = 700.0


def _log_w(measured: Measured) -> Figures:
    """Return log p(y)/q(y) of each token: 0 where both sides mask it, infinite where one does."""
    p, q = measured.columns["logp_reference"], measured.columns["logp_serving"]
    log_w: Figures = np.subtract(p, q, out=np.zeros(len(p)), where=p != q)
    return log_w


def _mean(values: Figures) -> float:
    """Return the mean; NaN for nothing measured."""
    return float(values.mean()) if len(values) else float("nan")


def kl(measured: Measured) -> float:
    """Return the mean over positions of KL(P || Q), in nats."""
    return _mean(measured.columns["kl_reference_serving"])


def reverse_kl(measured: Measured) -> float:
    """Return the mean over positions of KL(Q || P), in nats."""
    return _mean(measured.columns["kl_serving_reference"])


def jeffreys(measured: Measured) -> float:
    """Return the mean over positions of KL(P || Q) + KL(Q || P), in nats."""
    return kl(measured) + reverse_kl(measured)


def k3(measured: Measured) -> float:
    """Return the mean over tokens of W - 1 - log W, W = p(y)/q(y): estimates KL(Q || P) when Q drew the tokens."""
    log_w = _log_w(measured)
    known = np.minimum(log_w, _LARGEST_EXPONENT)
    return _mean(np.where(np.isfinite(log_w), np.expm1(known) - known, np.inf))


def chi2(measured: Measured) -> float:
    """Return the mean over tokens of (W - 1)^2: estimates chi2(P || Q) when Q drew the tokens."""
    log_w = _log_w(measured)
    squares = np.expm1(np.minimum(log_w, _LARGEST_EXPONENT / 2)) ** 2
    return _mean(np.where(np.isposinf(log_w), np.inf, squares))


def ess(measured: Measured) -> float:
    """Return the effective share of the tokens, (mean W)^2 / mean W^2: 1 when the two programs agree."""
    log_w = _log_w(measured)
    largest = log_w.max(initial=-np.inf)
    if np.isneginf(largest):
        return 0.0 if len(log_w) else float("nan")
    w = np.exp(np.subtract(log_w, largest, out=np.zeros(len(log_w)), where=log_w != largest))
    return float(w.mean() ** 2 / (w**2).mean())


def ece_reference(measured: Measured) -> float:
    """Return the reference's calibration error in ten bins, against the tokens that were scored."""
    return calibration_error(measured, "reference")


def ece_serving(measured: Measured) -> float:
    """Return the serving engine's calibration error in ten bins, against the tokens that were scored."""
    return calibration_error(measured, "serving")


DIAGNOSTICS: Mapping[str, Callable[[Measured], float]] = {
    "kl": kl,
    "reverse_kl": reverse_kl,
    "jeffreys": jeffreys,
    "k3": k3,
    "chi2": chi2,
    "ess": ess,
    "ece_reference": ece_reference,
    "ece_serving": ece_serving,
}


def _names_alone(written: object) -> object:
    if isinstance(written, dict):
        raise ValueError(
            "expected names alone, such as [kl, k3]: no finite sample bounds these figures, so they take no limit; "
            "limit half_span or tv_answer instead"
        )
    return written


def _known(names: tuple[str, ...]) -> tuple[str, ...]:
    if unknown := [name for name in names if name not in DIAGNOSTICS]:
        raise ValueError(f"expected names out of {', '.join(DIAGNOSTICS)}, found {', '.join(unknown)}")
    return tuple(name for name in DIAGNOSTICS if name in names)


Diagnostics = Annotated[tuple[str, ...], BeforeValidator(_names_alone), AfterValidator(_known)]
