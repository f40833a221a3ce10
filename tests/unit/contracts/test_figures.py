from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from snapline.contracts.figures import DecimalText, Level, Share, decimal_text, rounded, rounded_down, rounded_up


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("0.10", "0.1"),
        ("1e-5", "0.00001"),
        ("1E+2", "100"),
        ("100", "100"),
        ("-0", "0"),
        ("2.0", "2"),
        ("-1.50", "-1.5"),
    ],
)
def test_one_spelling_per_value(written, text):
    assert decimal_text(Decimal(written)) == text
    assert TypeAdapter(DecimalText).dump_python(Decimal(written), mode="json") == text


def test_what_is_no_number_stays_so():
    assert [decimal_text(rounded(value)) for value in (float("nan"), float("inf"))] == ["NaN", "Infinity"]


@settings(deadline=None)
@given(st.floats(-1e300, 1e300))
def test_limits_are_rounded_away_from_the_estimate(value):
    exact = Decimal(repr(value))
    assert rounded_down(value) <= exact <= rounded_up(value)
    assert rounded_up(value) - rounded_down(value) <= Decimal("1e-9")


def test_a_short_decimal_is_not_moved_by_its_binary_form():
    assert rounded_up(0.1) == rounded_down(0.1) == Decimal("0.1")


@pytest.mark.parametrize("wrong", [0.1, "nan", "inf", "ten", "1234567890123456789", None])
def test_a_figure_is_a_finite_decimal_and_never_a_float(wrong):
    with pytest.raises(ValidationError):
        TypeAdapter(DecimalText).validate_python(wrong)


@pytest.mark.parametrize(("kind", "wrong"), [(Share, "1"), (Share, "-0.1"), (Level, "0"), (Level, "1")])
def test_shares_and_levels_have_their_ends(kind, wrong):
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(wrong)
