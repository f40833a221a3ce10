"""The divergence measures on a CPU, compiled by numba: two exponentials for each pair of logits, and no more.

A row is gone through three times, in blocks that stay in the first cache where it matters:

1. `_blocks` finds the largest logits, the range of d and the masks. It compares bit patterns as integers, which is
   exact for every float, NaN included, and needs no assumption about them to become vector instructions.
2. `_weigh` computes exp(z - max z) and exp(z' - max z'): the two exponentials. They are kept, for the normalisers must
   be known before any probability is.
3. `_compare` turns them into p and q and sums the distances. log(q/p) is a subtraction, and expm1(l) - l is q/p - 1 - l
   where l is large and a polynomial where it is small, so that neither costs an exponential.

All arithmetic is in float64, whatever the logits are. `_exp` is a polynomial because a call of the C library's `exp` is
what keeps a loop from being vectorized; its relative error stays under 1e-14. Nothing here needs a C compiler: numba
brings LLVM along, and what it compiled is kept beside this file, or in the user's cache where that cannot be written.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial, inf, log, nan
from typing import Any, TypeVar, cast

import numba  # type: ignore[import-untyped]
import numpy as np
from numba.extending import intrinsic  # type: ignore[import-untyped]
from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

BLOCK = 1024
_LOWEST = -708.0  # exp of less is no normal float64, and counts as 0
_SMALL = 0.5  # the polynomials below are good to 3e-9 of themselves up to here
_INFINITE = 0x7F800000  # bits of a float32 +inf, which is also its key
_MASKED = ~_INFINITE  # key of a float32 -inf
_FIRST32, _LAST32 = -(1 << 31), (1 << 31) - 1
_FIRST64, _LAST64 = -(1 << 63), (1 << 63) - 1
_LOG2_E = 1.4426950408889634
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10  # their sum is log 2
_ROUND = 1.5 * 2.0**52  # a float64 this large has no fraction: adding it rounds, and leaves the integer in its low bits
E2, E3, E4, E5, E6, E7, E8, E9, E10, E11 = (1 / factorial(k) for k in range(2, 12))

MEASURES = 10
HALF_SPAN, TV, FORWARD, BACKWARD, MARGIN, ENTROPY, LOGP_REFERENCE, LOGP_SERVING, TOP_REFERENCE, TOP_SERVING = range(10)
GREEDY_REFERENCE, GREEDY_SERVING = range(2)
FLIP, IDENTICAL = range(2)

# Weights of either side, one per token, and the largest logits of either side, one per block.
Scratch = tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float32], NDArray[np.float32]]

# The measures, the greedy tokens and the flags of a position, in the order of the names above.
Found = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]


def _compile(*flags: str, signature: str | None = None) -> Callable[[Function], Function]:
    """Return numba's decorator, its work kept on disk where there is a place for that.

    Args:
        flags: What LLVM may do to floats: `reassoc` sums in any order, `contract` fuses a product with a sum.
        signature: Compile for these types at once.
    """
    signatures = () if signature is None else (signature,)

    def decorate(function: Function) -> Function:
        options: dict[str, Any] = {"nogil": True, "fastmath": set(flags)}
        try:
            return cast(Function, numba.njit(*signatures, cache=True, **options)(function))
        except RuntimeError:  # numba found no folder to keep compiled code in
            return cast(Function, numba.njit(*signatures, **options)(function))

    return decorate


_PAIR_OF_BITS = {numba.float32: numba.int32, numba.float64: numba.int64}
_PAIR_OF_BITS |= {bits: number for number, bits in _PAIR_OF_BITS.items()}


@intrinsic  # type: ignore[untyped-decorator]
def _as_bits(_: Any, value: Any) -> Any:
    """Return the bits of a float as an integer, or the float of those bits."""
    other = _PAIR_OF_BITS[value]

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], context.get_value_type(signature.return_type))

    return other(value), generate


@_compile()
def _key(value: np.float32) -> np.int32:
    """Return an integer in the order of the floats; -0 is just below 0, a NaN beyond either infinity."""
    bits = _as_bits(value)
    return np.int32(bits ^ np.int32(np.int32(bits >> np.int32(31)) & np.int32(0x7FFFFFFF)))


@_compile()
def _of_key(key: np.int32) -> np.float32:
    mask = np.int32(np.int32(key >> np.int32(31)) & np.int32(0x7FFFFFFF))
    value: np.float32 = _as_bits(np.int32(key ^ mask))
    return value


@_compile()
def _key_of_double(value: np.float64) -> np.int64:
    bits = _as_bits(value)
    key: np.int64 = bits ^ ((bits >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF))
    return key


@_compile()
def _double_of_key(key: np.int64) -> np.float64:
    value: np.float64 = _as_bits(key ^ ((key >> np.int64(63)) & np.int64(0x7FFFFFFFFFFFFFFF)))
    return value


@_compile("contract")
def _exp(x: float) -> float:
    """Return exp(x) for x in [-708, 0]: 2^k exp(r), where k is the nearest integer to x / log 2."""
    shifted = x * _LOG2_E + _ROUND
    k = shifted - _ROUND
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    high = E6 + r * (E7 + r * (E8 + r * (E9 + r * (E10 + r * E11))))
    y = 1.0 + r * (1.0 + r * (E2 + r * (E3 + r * (E4 + r * (E5 + r * high)))))
    power: float = _as_bits(_as_bits(y) + (_as_bits(shifted) << np.int64(52)))
    return power


@_compile()
def _extremes(z: NDArray[np.float32], served: NDArray[np.float32]) -> tuple[np.int32, np.int32, np.int32]:
    """Return the largest key of either side and the smallest of both."""
    top, top_serving, smallest = np.int32(_FIRST32), np.int32(_FIRST32), np.int32(_LAST32)
    for i in range(len(z)):
        key, key_serving = _key(z[i]), _key(served[i])
        top = key if key > top else top
        top_serving = key_serving if key_serving > top_serving else top_serving
        smallest = key if key < smallest else smallest
        smallest = key_serving if key_serving < smallest else smallest
    return top, top_serving, smallest


@_compile()
def _range(z: NDArray[np.float32], served: NDArray[np.float32]) -> tuple[np.int64, np.int64]:
    """Return the keys of the least and the largest d where no token is masked."""
    low, high = np.int64(_LAST64), np.int64(_FIRST64)
    for i in range(len(z)):
        key = _key_of_double(np.float64(served[i]) - np.float64(z[i]))
        low = key if key < low else low
        high = key if key > high else high
    return low, high


@_compile()
def _masked_range(z: NDArray[np.float32], served: NDArray[np.float32]) -> tuple[np.int64, np.int64]:
    """Return the same where some are: one masked on both sides counts for nothing, one on one side is an infinite d."""
    low, high = np.int64(_LAST64), np.int64(_FIRST64)
    for i in range(len(z)):
        if z[i] > -inf or served[i] > -inf:
            key = _key_of_double(np.float64(served[i]) - np.float64(z[i]))
            low, high = min(low, key), max(high, key)
    return low, high


@_compile()
def _same(z: NDArray[np.float32], served: NDArray[np.float32]) -> bool:
    different = np.int32(0)
    for i in range(len(z)):
        different = np.int32(different | np.int32(_as_bits(z[i]) ^ _as_bits(served[i])))
    return bool(different == 0)


@_compile()
def _blocks(
    z: NDArray[np.float32],
    served: NDArray[np.float32],
    tops: NDArray[np.float32],
    tops_serving: NDArray[np.float32],
) -> tuple[bool, bool, float, float]:
    """Fill in the largest logit of each block.

    Returns:
        Whether every logit is a number or -inf, whether the rows are equal bit by bit, and the least and largest d.
    """
    fine, identical = True, True
    low, high = np.int64(_LAST64), np.int64(_FIRST64)
    for block in range(len(tops)):
        ours, theirs = z[block * BLOCK : (block + 1) * BLOCK], served[block * BLOCK : (block + 1) * BLOCK]
        top, top_serving, smallest = _extremes(ours, theirs)
        tops[block], tops_serving[block] = _of_key(top), _of_key(top_serving)
        fine = fine and bool(top < _INFINITE and top_serving < _INFINITE and smallest >= _MASKED)
        least, largest = _range(ours, theirs) if smallest > _MASKED else _masked_range(ours, theirs)
        low, high = min(low, least), max(high, largest)
        identical = identical and _same(ours, theirs)
    return fine, identical, _double_of_key(low), _double_of_key(high)


@_compile()
def _greedy(z: NDArray[np.float32], tops: NDArray[np.float32], top: np.float32) -> int:
    """Return the first token that has the largest logit; equality of floats, so that -0 and 0 are a tie."""
    block = 0
    while tops[block] != top:
        block += 1
    token = block * BLOCK
    while z[token] != top:
        token += 1
    return token


@_compile()
def _second(z: NDArray[np.float32], tops: NDArray[np.float32], greedy: int) -> float:
    """Return the largest logit of the other tokens, -inf where there is none."""
    second = -inf
    for block in range(len(tops)):
        if block != greedy // BLOCK:
            second = max(second, tops[block])
    first = greedy // BLOCK * BLOCK
    for token in range(first, min(first + BLOCK, len(z))):
        if token != greedy:
            second = max(second, z[token])
    return second


@_compile("reassoc", "contract")
def _weigh(z: NDArray[np.float32], top: float, scale: float, weights: NDArray[np.float64]) -> tuple[float, float]:
    """Fill in exp((z - top) scale), and return its sum and that of its product with its exponent."""
    total, moment = 0.0, 0.0
    for i in range(len(z)):
        exponent: float = (np.float64(z[i]) - top) * scale
        usable = exponent > _LOWEST
        exponent = exponent if usable else _LOWEST
        weight = _exp(exponent)
        weight = weight if usable else 0.0
        weights[i] = weight
        total += weight
        moment += weight * exponent
    return total, moment


@_compile("reassoc", "contract")
def _compare(
    rows: tuple[NDArray[np.float32], NDArray[np.float32]],
    weights: tuple[NDArray[np.float64], NDArray[np.float64]],
    totals: tuple[float, float],
    scale: float,
    offset: float,
) -> tuple[float, float, float]:
    """Return twice the total variation, KL(P || Q) and KL(Q || P), where l = d scale - offset.

    Where l is small they are sums of p |expm1(l)|, p (expm1(l) - l) and q (expm1(-l) + l), by the even and the odd part
    of expm1(l) - l; elsewhere of |q - p|, q - p - p l and p - q + q l, which cancel nothing there. A masked token has
    no l; what masks make infinite is for the caller.
    """
    z, served = rows
    ours, theirs = weights
    total, total_serving = totals
    inverse, inverse_serving = 1.0 / total, 1.0 / total_serving
    variation, forward, backward = 0.0, 0.0, 0.0
    for i in range(len(z)):
        p, q = ours[i] * inverse, theirs[i] * inverse_serving
        ratio: float = (np.float64(served[i]) - np.float64(z[i])) * scale - offset
        unmasked = abs(ratio) < inf
        ratio = ratio if unmasked else 0.0
        small = unmasked and abs(ratio) < _SMALL
        square = ratio * ratio
        even = square * (E2 + square * (E4 + square * (E6 + square * (E8 + square * E10))))
        odd = ratio * square * (E3 + square * (E5 + square * (E7 + square * E9)))
        change = q - p
        variation += abs(p * (ratio + even + odd)) if small else abs(change)
        forward += p * (even + odd) if small else change - p * ratio
        backward += q * (even - odd) if small else q * ratio - change
    return variation, forward, backward


@_compile()
def _measure(
    rows: tuple[NDArray[np.float32], NDArray[np.float32]],
    token: int,
    scale: float,
    scratch: Scratch,
    found: Found,
) -> None:
    """Fill in what is found at one position; a row that cannot be measured has no greedy token, which is written -1."""
    z, served = rows
    weights, weights_serving, tops, tops_serving = scratch
    measures, tokens, flags = found
    fine, identical, low, high = _blocks(z, served, tops, tops_serving)
    top, top_serving = tops.max(), tops_serving.max()
    flags[IDENTICAL] = identical
    if not fine or top == -inf or top_serving == -inf:
        measures[:], tokens[:] = nan, -1
        flags[FLIP] = False
        flags[IDENTICAL] = identical and not (np.isnan(z).any() or np.isnan(served).any())
        return
    greedy, greedy_serving = _greedy(z, tops, top), _greedy(served, tops_serving, top_serving)
    total, moment = _weigh(z, top, scale, weights)
    total_serving, _ = _weigh(served, top_serving, scale, weights_serving)
    offset = (np.float64(top_serving) - np.float64(top)) * scale + (log(total_serving) - log(total))
    compared = _compare(rows, (weights, weights_serving), (total, total_serving), scale, offset)
    tokens[GREEDY_REFERENCE], tokens[GREEDY_SERVING] = greedy, greedy_serving
    flags[FLIP] = greedy != greedy_serving
    measures[HALF_SPAN] = (high - low) / 2 * scale
    measures[TV] = compared[0] / 2
    measures[FORWARD] = inf if low == -inf else compared[1]
    measures[BACKWARD] = inf if high == inf else compared[2]
    measures[MARGIN] = (np.float64(top) - _second(z, tops, greedy)) * scale
    measures[ENTROPY] = log(total) - moment / total
    measures[LOGP_REFERENCE] = (np.float64(z[token]) - top) * scale - log(total)
    measures[LOGP_SERVING] = (np.float64(served[token]) - top_serving) * scale - log(total_serving)
    measures[TOP_REFERENCE], measures[TOP_SERVING] = -log(total), -log(total_serving)


def scratch_for(vocabulary: int) -> Scratch:
    """Return what one thread writes to meanwhile. Made once: fresh memory for every row costs more than the row."""
    blocks = (vocabulary + BLOCK - 1) // BLOCK
    return np.empty(vocabulary), np.empty(vocabulary), np.empty(blocks, np.float32), np.empty(blocks, np.float32)


@_compile(
    signature="void(float32[:, ::1], float32[:, ::1], int64[::1], float64,"
    "Tuple((float64[::1], float64[::1], float32[::1], float32[::1])),"
    "Tuple((float64[:, ::1], int64[:, ::1], boolean[:, ::1])))"
)
def measure(
    reference: NDArray[np.float32],
    serving: NDArray[np.float32],
    tokens: NDArray[np.int64],
    scale: float,
    scratch: Scratch,
    found: Found,
) -> None:
    """Fill in what is found at n positions, of shapes (n, 10), (n, 2) and (n, 2).

    Args:
        reference, serving: Logits of shape (n, vocabulary).
        tokens: Shape (n,), each within the vocabulary: that is not checked.
        scale: 1 / temperature.
        scratch: Of `scratch_for` the vocabulary; written to.
        found: Written to.
    """
    for row in range(len(reference)):
        written = found[0][row], found[1][row], found[2][row]
        _measure((reference[row], serving[row]), tokens[row], scale, scratch, written)


@_compile(signature="void(int16[:, ::1], float32[:, ::1])")
def widen_bfloat16(bits: NDArray[np.int16], out: NDArray[np.float32]) -> None:
    """Fill in the float32 values of bfloat16 bits."""
    for row in range(len(bits)):
        for i in range(bits.shape[1]):
            out[row, i] = _as_bits(np.int32(np.int32(bits[row, i]) << np.int32(16)))


@_compile(signature="void(int16[:, ::1], float32[:, ::1])")
def widen_float16(bits: NDArray[np.int16], out: NDArray[np.float32]) -> None:
    """Fill in the float32 values of float16 bits."""
    bias = np.int32(112 << 23)  # from an exponent that counts from -15 to one that counts from -127
    for row in range(len(bits)):
        for i in range(bits.shape[1]):
            half = np.int32(bits[row, i])
            magnitude = np.int32(half & np.int32(0x7FFF))
            wide = np.int32(np.int32(magnitude << np.int32(13)) + bias)
            wide = np.int32(wide + bias) if magnitude >= 0x7C00 else wide
            subnormal = _as_bits(np.float32(np.float32(magnitude) * np.float32(2.0**-24)))
            wide = subnormal if magnitude < 0x400 else wide
            out[row, i] = _as_bits(np.int32(wide | np.int32(half & np.int32(_FIRST32))))
