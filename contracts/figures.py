"""Decimal figures: how numbers are written in documents that are hashed or signed.

No float enters such a document. A figure has one spelling per value, so `0.10` and `0.1` are the same text and the same
digest, and a confidence limit is rounded away from the estimate, so that what is printed is never a claim too strong.
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN, Context, Decimal
from typing import Annotated

from pydantic import BeforeValidator, Field, PlainSerializer

_STEP = Decimal("1e-9")
_WIDE = Context(prec=400)


def decimal_text(value: Decimal) -> str:
    """Return the one spelling of a decimal: no exponent, no trailing zeros, no negative zero."""
    if not value.is_finite():
        return str(value)
    text = format(value, "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if text == "-0" else text


def rounded(value: float, rounding: str = ROUND_HALF_EVEN) -> Decimal:
    """Return a float as a decimal with nine places; NaN and the infinities stay what they are."""
    exact = Decimal(repr(float(value)))
    return exact.quantize(_STEP, rounding, _WIDE) if math.isfinite(value) else exact


def rounded_up(value: float) -> Decimal:
    """Return the smallest nine-place decimal at or above `value`; for upper limits."""
    return rounded(value, ROUND_CEILING)


def rounded_down(value: float) -> Decimal:
    """Return the largest nine-place decimal at or below `value`; for lower limits."""
    return rounded(value, ROUND_FLOOR)


def _refuse_floats(value: object) -> object:
    if isinstance(value, float):
        raise ValueError(f"expected a decimal string, found the float {value!r}")
    return value


DecimalText = Annotated[
    Decimal,
    BeforeValidator(_refuse_floats),
    PlainSerializer(decimal_text, return_type=str),
    Field(allow_inf_nan=False, max_digits=18),
]
Limit = Annotated[DecimalText, Field(ge=0)]
Share = Annotated[DecimalText, Field(ge=0, lt=1)]
Level = Annotated[DecimalText, Field(gt=0, lt=1)]
