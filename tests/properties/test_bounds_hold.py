"""The half span of two rows bounds everything else that is measured of them."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from snapline.contracts import bounds
from snapline.contracts.kernels.reference import divergence

SLACK = 1e-12


@st.composite
def pairs_of_rows(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor]:
    vocabulary = draw(st.sampled_from([2, 3, 40]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    z = torch.randn(8, vocabulary, generator=generator) * draw(st.sampled_from([0.1, 3.0, 20.0]))
    distance = draw(st.sampled_from([1e-4, 0.01, 0.3, 2.0, 6.0]))
    kind = draw(st.sampled_from(["normal", "two-valued"]))
    noise = torch.randn(8, vocabulary, generator=generator)
    return z, z + distance * (noise if kind == "normal" else noise.sign())


@given(pairs_of_rows())
def test_half_span_bounds_every_other_measure(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    found = divergence(*pair, [0] * 8)
    for row, half_span in enumerate(found.half_span.tolist()):
        assert found.tv[row] <= bounds.tv(half_span) + SLACK
        for name in ("kl_reference_serving", "kl_serving_reference"):
            assert 0 <= getattr(found, name)[row] <= bounds.kl(half_span) * (1 + 1e-9) + SLACK
        if found.flip[row]:
            assert bounds.greedy_flip_possible(half_span, float(found.margin[row]) - SLACK)
        ratio = found.logp_serving[row] - found.logp_reference[row]
        assert abs(ratio) <= bounds.log_ratio(half_span) + SLACK


@given(pairs_of_rows())
def test_the_measures_of_two_programs_mirror_each_other(pair: tuple[torch.Tensor, torch.Tensor]) -> None:
    forth, back = divergence(*pair, [0] * 8), divergence(*reversed(pair), [0] * 8)
    torch.testing.assert_close(forth.half_span, back.half_span)
    torch.testing.assert_close(forth.tv, back.tv)
    torch.testing.assert_close(forth.kl_reference_serving, back.kl_serving_reference, rtol=1e-9, atol=1e-15)
    assert torch.equal(forth.flip, back.flip)
