# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"
"""The divergence measures on a CUDA device, in Triton: each logit is read from the device's memory once.

The distances need both normalisers, so a row is read twice; the second time it is still in the cache. One launch does
both. Each program draws a ticket, and tickets alternate between weighing a piece of a row, which reads it from memory
and keeps its largest logits and normalisers, and comparing a piece that was weighed some tickets ago. Whoever compares
waits until the row is weighed, for lower tickets alone, whose programs have already started, so nobody waits in vain.
The lag between the two is wide enough that they hardly wait at all, and narrow enough for the cache.

Arithmetic is float32, and sums are float64 over at most 8 terms added in float32. z' - z is exact in float32 where the
rows are near each other; a constant that was added to one of them costs the digits that it costs the logits. Where l is
small the distances come from a polynomial in it, as in `compiled`. Rows with a token that one side alone masks, or with
logits further apart than float32 holds, are computed anew the plain way.
"""

from __future__ import annotations

from dataclasses import fields

import torch
import triton  # type: ignore[import-not-found]
import triton.language as tl  # type: ignore[import-not-found]
from torch import Tensor

from snapline.contracts.kernels import reference as plain
from snapline.contracts.kernels.reference import Divergence

WARPS = 8
MEASURES, WEIGHED, COMPARED = 10, 4, 13  # how many figures a row has, and a piece after each step

_LANES, _STEPS = tl.constexpr(256), tl.constexpr(8)
_WEIGHED, _COMPARED = tl.constexpr(WEIGHED), tl.constexpr(COMPARED)
LOG2_E = tl.constexpr(1.4426950408889634)
NONE = tl.constexpr(1 << 30)  # no token
_INTERPRETED = tl.constexpr(bool(triton.knobs.runtime.interpret))
_LEAST = tl.constexpr(-1e30)  # finite, and exp of it is 0
E2, E3, E4 = tl.constexpr(1 / 2), tl.constexpr(1 / 6), tl.constexpr(1 / 24)
E5, E6, E7 = tl.constexpr(1 / 120), tl.constexpr(1 / 720), tl.constexpr(1 / 5040)


def divergence(reference: Tensor, serving: Tensor, tokens: Tensor, temperature: float = 1.0) -> Divergence:
    """Return the measures of n positions; see `reference.divergence`, whose figures these are to about 1e-5.

    Args:
        reference, serving: Logits of shape (n, vocabulary) in float32, bfloat16 or float16.
        tokens: Shape (n,), int64, each within the vocabulary: that is not checked.
        temperature: Both rows of logits are divided by it; more than 0.
    """
    measures, greedy, flags = launch(reference, serving, tokens, temperature)
    columns = [*measures.unbind(), *greedy.unbind(), *flags.unbind()]
    found = dict(zip((field.name for field in fields(Divergence)), columns, strict=True))
    if reference.dtype != serving.dtype:
        found["identical"] = torch.zeros_like(found["identical"])
    missing = measures.isnan()
    unusual = measures[0].isinf() | (missing.any(0) & ~missing.all(0)) | (missing.all(0) & flags[1])
    if unusual.any():
        again = plain.divergence(reference[unusual], serving[unusual], tokens[unusual], temperature)
        for name, column in found.items():
            column[unusual] = getattr(again, name)
    return Divergence(**found)


def launch(
    reference: Tensor, serving: Tensor, tokens: Tensor, temperature: float, lag: int | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Start the kernels and return what they write: measures (10, n), greedy tokens (2, n) and flags (2, n).

    Args:
        lag: After how many pieces weighed the first is compared; by default a row and two for each processor.
    """
    reference, serving = _in_rows(reference), _in_rows(serving)
    (count, vocabulary), device = reference.shape, reference.device
    measures = torch.empty((MEASURES, count), dtype=torch.float64, device=device)
    greedy = torch.empty((2, count), dtype=torch.int64, device=device)
    flags = torch.empty((2, count), dtype=torch.bool, device=device)
    if count == 0:
        return measures, greedy, flags
    width = 16 // max(reference.element_size(), serving.element_size())  # what a thread loads at once
    pieces = triton.cdiv(vocabulary, _LANES.value * _STEPS.value * width)
    weighed = torch.empty((count, pieces, WEIGHED), dtype=torch.float64, device=device)
    compared = torch.empty((count, pieces, COMPARED), dtype=torch.float64, device=device)
    tickets = torch.zeros(1 + count, dtype=torch.int32, device=device)
    scale = torch.full((1,), 1 / temperature, dtype=torch.float64, device=device)
    if lag is None:
        interpreted = device.type == "cpu"
        lag = pieces + 2 * (1 if interpreted else torch.cuda.get_device_properties(device).multi_processor_count)
    rows = (reference, serving, reference.stride(0), serving.stride(0), vocabulary)
    total, shape = count * pieces, {"pieces": pieces, "padded": triton.next_power_of_2(pieces)}
    schedule = total, min(total, max(pieces, lag))
    _sweep[(2 * total,)](rows, (scale, weighed, compared, tickets), schedule, **shape, width=width, num_warps=WARPS)
    given, out = (tokens.contiguous(), scale), (measures, greedy, flags, count)
    _finish[(count,)](rows, given, (weighed, compared), out, **shape, num_warps=1)
    return measures, greedy, flags


def _in_rows(logits: Tensor) -> Tensor:
    return logits.detach() if logits.stride(-1) == 1 else logits.detach().contiguous()


@triton.jit
def _sweep(rows, work, schedule, pieces: tl.constexpr, padded: tl.constexpr, width: tl.constexpr):
    """Weigh or compare one piece, whichever this program's ticket says."""
    reference, serving, stride, stride_serving, vocabulary = rows
    scale, weighed, compared, tickets = work
    total, lag = schedule
    after = tl.atomic_add(tickets, 1) - lag
    last = after >= 2 * (total - lag)
    compare = (after >= 0) & (last | (after % 2 == 1))
    mixed = tl.where(compare, after // 2, lag + after // 2)
    piece = tl.where(after < 0, after + lag, tl.where(last, after - (total - lag), mixed))
    row, part = piece // pieces, piece % pieces
    ours, theirs = reference + row.to(tl.int64) * stride, serving + row.to(tl.int64) * stride_serving
    if compare:
        while tl.atomic_add(tickets + 1 + row, 0) < pieces:
            pass
        places = scale, weighed + row * pieces * _WEIGHED, compared + piece * _COMPARED
        _compare((ours, theirs, vocabulary), places, part, pieces, padded, width)
    else:
        here = weighed + piece * _WEIGHED
        _weigh((ours, theirs, vocabulary), scale, here, part, width)
        tl.debug_barrier()
        tl.atomic_add(tickets + 1 + row, 1)


@triton.jit
def _tokens(part, step, width: tl.constexpr):
    """Return which tokens each lane has in one step of a piece, of shape (_LANES, width)."""
    first = (part * _STEPS + step) * (_LANES * width)
    return first + tl.arange(0, _LANES)[:, None] * width + tl.arange(0, width)[None, :]


@triton.jit
def _load(row, tokens, vocabulary):
    return tl.load(row + tokens, mask=tokens < vocabulary, other=-float("inf")).to(tl.float32)


@triton.jit
def _weigh(rows, scale, out, part, width: tl.constexpr):
    """Write down a piece's largest logit and the sum of exp((z - largest) scale), for either side.

    Meanwhile every lane has a largest of its own.
    """
    reference, serving, vocabulary = rows
    factor = (tl.load(scale) * LOG2_E).to(tl.float32)
    top = tl.full((_LANES,), -float("inf"), tl.float32)
    total = tl.zeros((_LANES,), tl.float64)
    top_serving, total_serving = top, total
    for step in tl.range(_STEPS, loop_unroll_factor=2):
        tokens = _tokens(part, step, width)
        top, total = _add(_load(reference, tokens, vocabulary), top, total, factor)
        top_serving, total_serving = _add(_load(serving, tokens, vocabulary), top_serving, total_serving, factor)
    largest, largest_serving = tl.reduce((top, top_serving), 0, _largest_of_two)
    total *= _exp2((top - _finite(largest)) * factor)
    total_serving *= _exp2((top_serving - _finite(largest_serving)) * factor)
    total, total_serving = tl.reduce((total, total_serving), 0, _sum_of_two)
    tl.store(out, largest.to(tl.float64))
    tl.store(out + 1, total)
    tl.store(out + 2, largest_serving.to(tl.float64))
    tl.store(out + 3, total_serving)


@triton.jit
def _add(z, top, total, factor):
    """Return each lane's largest logit so far and its sum of weights relative to that."""
    higher = tl.maximum(top, tl.max(z, axis=1))
    base = _finite(higher)
    weights = tl.sum(_exp2((z - base[:, None]) * factor), axis=1)
    return higher, total * _exp2((top - base) * factor) + weights


@triton.jit
def _finite(top):
    """Return what to take from logits of which this is the largest; a row that is masked throughout has none."""
    return tl.where(top == -float("inf"), 0.0, top)


@triton.jit
def _largest_of_two(a, b, other, other_b):
    return tl.maximum(a, other), tl.maximum(b, other_b)


@triton.jit
def _sum_of_two(a, b, other, other_b):
    return a + other, b + other_b


@triton.jit
def _totals(weighed, scale, pieces: tl.constexpr, padded: tl.constexpr):
    """Return a row's largest logit and its sum of exp((z - largest) scale), put together from its pieces."""
    piece = tl.arange(0, padded)
    there = piece < pieces
    tops = tl.load(weighed + piece * _WEIGHED, mask=there, other=-float("inf"), cache_modifier=".cg")
    sums = tl.load(weighed + piece * _WEIGHED + 1, mask=there, other=0.0, cache_modifier=".cg")
    top = tl.max(tops, axis=0)
    return top, tl.sum(sums * _exp2(((tops - _finite(top)) * tl.load(scale) * LOG2_E).to(tl.float32)), axis=0)


@triton.jit
def _compare(rows, work, part, pieces: tl.constexpr, padded: tl.constexpr, width: tl.constexpr):
    """Write down a piece's share of every distance, and whatever it holds of the greedy tokens."""
    reference, serving, vocabulary = rows
    scale, weighed, out = work
    wide = tl.load(scale)
    top, total = _totals(weighed, scale, pieces, padded)
    top_serving, total_serving = _totals(weighed + 2, scale, pieces, padded)
    offset = top_serving - top + (tl.log(total_serving) - tl.log(total)) / wide
    coarse = offset.to(tl.float32)
    tops = top.to(tl.float32), top_serving.to(tl.float32)
    offsets = coarse, (offset - coarse.to(tl.float64)).to(tl.float32)
    inverses = (1 / total).to(tl.float32), (1 / total_serving).to(tl.float32)
    scales = wide.to(tl.float32), (wide * LOG2_E).to(tl.float32)
    variation = tl.zeros((_LANES,), tl.float64)
    forward, both, moment = variation, variation, variation
    low, high = tl.full((_LANES,), float("inf"), tl.float32), tl.full((_LANES,), -float("inf"), tl.float32)
    different = tl.zeros((_LANES,), tl.uint32)
    for step in tl.range(_STEPS, loop_unroll_factor=2):
        tokens = _tokens(part, step, width)
        z, served = _load(reference, tokens, vocabulary), _load(serving, tokens, vocabulary)
        unlike = z.to(tl.uint32, bitcast=True) ^ served.to(tl.uint32, bitcast=True)
        different = tl.maximum(different, tl.max(unlike, axis=1))
        d = served - z
        least, largest = tl.min(d, axis=1), tl.max(d, axis=1)  # NaN for a lane whose tokens all are masked
        low, high = tl.where(least < low, least, low), tl.where(largest > high, largest, high)
        exponent = z - tops[0]
        p = _exp2(exponent * scales[1]) * inverses[0]
        q = _exp2((served - tops[1]) * scales[1]) * inverses[1]
        parts = _distances(p, q, ((d - offsets[0]) - offsets[1]) * scales[0])
        variation, forward, both = variation + parts[0], forward + parts[1], both + parts[2]
        moment += tl.sum(p * tl.maximum(exponent, _LEAST), axis=1).to(tl.float64)
    lanes = variation, forward, both, moment, low, high, different
    variation, forward, both, moment, low, high, different = tl.reduce(lanes, 0, _together)
    tl.store(out, variation)
    tl.store(out + 1, forward)
    tl.store(out + 2, both)
    tl.store(out + 3, moment)
    tl.store(out + 4, low.to(tl.float64))
    tl.store(out + 5, high.to(tl.float64))
    tl.store(out + 6, different.to(tl.float64))
    _greedy((reference, vocabulary), tops[0], weighed + part * _WEIGHED, out + 7, part, width)
    _greedy((serving, vocabulary), tops[1], weighed + part * _WEIGHED + 2, out + 10, part, width)


@triton.jit
def _together(  # noqa: PLR0913, PLR0917
    variation,
    forward,
    both,
    moment,
    low,
    high,
    different,
    variation2,
    forward2,
    both2,
    moment2,
    low2,
    high2,
    different2,
):
    """Return two lanes as one."""
    variation, forward, both, moment = variation + variation2, forward + forward2, both + both2, moment + moment2
    low, high, different = tl.minimum(low, low2), tl.maximum(high, high2), tl.maximum(different, different2)
    return variation, forward, both, moment, low, high, different


@triton.jit
def _greedy(row, top, weighed, out, part, width: tl.constexpr):
    """Write down the first token with the row's largest logit, how many have it, and the piece's next largest logit.

    Only the piece that holds the row's largest is gone through; in another its own largest is the next.
    """
    reference, vocabulary = row
    here = tl.load(weighed, cache_modifier=".cg")
    first, ties, second = tl.full((), NONE, tl.int32), tl.full((), 0, tl.int32), here.to(tl.float32)
    if second == top:
        second = tl.full((), -float("inf"), tl.float32)
        for step in range(_STEPS):
            tokens = _tokens(part, step, width)
            z = _load(reference, tokens, vocabulary)
            is_top = z == top
            first = tl.minimum(first, tl.min(tl.min(tl.where(is_top, tokens, NONE), axis=1), axis=0))
            ties += tl.sum(tl.sum(is_top.to(tl.int32), axis=1), axis=0)
            second = tl.maximum(second, tl.max(tl.max(tl.where(is_top, -float("inf"), z), axis=1), axis=0))
    tl.store(out, first.to(tl.float64))
    tl.store(out + 1, ties.to(tl.float64))
    tl.store(out + 2, second.to(tl.float64))


@triton.jit
def _distances(p, q, ratio):
    """Return by lane twice the total variation, KL(P || Q), and that with KL(Q || P), which is the sum of (q - p) l.

    `ratio` is l; infinite where one side masks a token, and NaN where both do. The formulas are those of `compiled`.
    """
    small = tl.abs(ratio) < 0.5
    ratio = tl.where(tl.abs(ratio) < float("inf"), ratio, 0.0)
    excess = ratio * ratio * (E2 + ratio * (E3 + ratio * (E4 + ratio * (E5 + ratio * (E6 + ratio * E7)))))
    change = tl.where(small, p * (ratio + excess), q - p)
    forward = tl.where(small, p * excess, change - p * ratio)
    return (
        tl.sum(tl.abs(change), axis=1).to(tl.float64),
        tl.sum(forward, axis=1).to(tl.float64),
        tl.sum(change * ratio, axis=1).to(tl.float64),
    )


@triton.jit
def _exp2(x):
    """Return 2^x, 0 where that is no normal float: keeping those costs three instructions more."""
    if _INTERPRETED:
        return tl.exp2(x)
    return tl.inline_asm_elementwise("ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1)


@triton.jit
def _finish(rows, given, work, out, pieces: tl.constexpr, padded: tl.constexpr):
    """Put a row's pieces together and write what was found."""
    reference, serving, stride, stride_serving, _ = rows
    tokens, scales = given
    weighed, compared = work
    measures, greedy, flags, count = out
    row, scale = tl.program_id(0), tl.load(scales)
    top, total = _totals(weighed + row * pieces * _WEIGHED, scales, pieces, padded)
    top_serving, total_serving = _totals(weighed + row * pieces * _WEIGHED + 2, scales, pieces, padded)
    log_total, log_total_serving = tl.log(total), tl.log(total_serving)
    token, wide = tl.load(tokens + row), row.to(tl.int64)
    z = tl.load(reference + wide * stride + token).to(tl.float32).to(tl.float64)
    served = tl.load(serving + wide * stride_serving + token).to(tl.float32).to(tl.float64)
    piece = tl.arange(0, padded)
    there, here = piece < pieces, compared + (row * pieces + piece) * _COMPARED
    low = tl.min(tl.load(here + 4, mask=there, other=float("inf")), axis=0)
    high = tl.max(tl.load(here + 5, mask=there, other=-float("inf")), axis=0)
    first = tl.min(tl.load(here + 7, mask=there, other=1e9), axis=0)
    alone = tl.sum(tl.load(here + 8, mask=there, other=0.0), axis=0) < 2
    second = tl.max(tl.load(here + 9, mask=there, other=-float("inf")), axis=0)
    first_serving = tl.min(tl.load(here + 10, mask=there, other=1e9), axis=0)
    fine = (tl.abs(log_total) < float("inf")) & (tl.abs(log_total_serving) < float("inf"))
    forward = tl.sum(tl.load(here + 1, mask=there, other=0.0), axis=0)
    found = (
        (high - low) / 2 * scale,
        tl.sum(tl.load(here, mask=there, other=0.0), axis=0) / 2,
        forward,
        tl.sum(tl.load(here + 2, mask=there, other=0.0), axis=0) - forward,
        tl.where(alone, (top - second) * scale, 0.0),
        log_total - tl.sum(tl.load(here + 3, mask=there, other=0.0), axis=0) * scale,
        (z - top) * scale - log_total,
        (served - top_serving) * scale - log_total_serving,
        -log_total,
        -log_total_serving,
    )
    for i in tl.static_range(10):
        tl.store(measures + i * count + row, tl.where(fine, found[i], float("nan")))
    tl.store(greedy + row, tl.where(fine, first, -1.0).to(tl.int64))
    tl.store(greedy + count + row, tl.where(fine, first_serving, -1.0).to(tl.int64))
    tl.store(flags + row, fine & (first != first_serving))
    tl.store(flags + count + row, tl.sum(tl.load(here + 6, mask=there, other=0.0), axis=0) == 0)
