"""The divergence measures of two rows of logits, computed plainly: the numbers every faster kernel is held against.

Notation: z are the reference's logits and z' the serving engine's at one position, both divided by the temperature;
p = softmax(z), q = softmax(z'), d = z' - z and l = log q - log p. Everything is computed in float64 from the logits as
they were given, a few rows at a time, so memory stays small at any vocabulary.

It imports nothing but torch, so that it also runs on a machine where the rest of Snapline is not installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields

import torch
from torch import Tensor

CHUNK_ELEMENTS = 1 << 18
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Divergence:
    """The measures of n positions; each is a tensor of shape (n,), in float64 unless said otherwise.

    A row that holds a NaN or a +inf, or no finite logit at all, has NaN in every float measure: it is a missing
    measurement, never a small one.

    Attributes:
        half_span: (max d - min d) / 2 over tokens that neither side masks; inf where only one side masks a token.
        tv: Total variation distance, sum |p - q| / 2, in [0, 1].
        kl_reference_serving: KL(P || Q) in nats; inf where Q masks a token that P does not.
        kl_serving_reference: KL(Q || P) in nats.
        margin: The reference's largest logit less its second largest; inf where it leaves only one token.
        entropy: Of P, in nats.
        logp_reference, logp_serving: Log-probability of the given token, in nats.
        top_reference, top_serving: Log-probability of either side's greedy token, in nats.
        greedy_reference, greedy_serving: Either side's greedy token (int64).
        flip: Whether the two greedy tokens differ (bool). Among equal logits the lowest token id is the greedy one.
        identical: Whether the two rows are equal bit by bit in the dtype they came in (bool). A NaN is never identical.
    """

    half_span: Tensor
    tv: Tensor
    kl_reference_serving: Tensor
    kl_serving_reference: Tensor
    margin: Tensor
    entropy: Tensor
    logp_reference: Tensor
    logp_serving: Tensor
    top_reference: Tensor
    top_serving: Tensor
    greedy_reference: Tensor
    greedy_serving: Tensor
    flip: Tensor
    identical: Tensor


def divergence(
    reference: Tensor, serving: Tensor, tokens: Tensor | Sequence[int], temperature: float = 1.0
) -> Divergence:
    """Return the measures of n positions.

    A constant added to a row changes none of them but `identical`. On a CPU it uses one thread: it runs beside engines
    that want the others, and threads that wait for each other on a busy core are slower than none.

    Args:
        reference: Raw logits of shape (n, vocabulary), in any floating dtype; -inf masks a token.
        serving: Raw logits of the same shape; the dtype may differ.
        tokens: The given token at each of the n positions.
        temperature: Both rows of logits are divided by it; more than 0.
    """
    tokens = torch.as_tensor(tokens, dtype=torch.long, device=reference.device)
    rows = max(1, CHUNK_ELEMENTS // reference.shape[-1])
    starts = range(0, max(1, len(reference)), rows)
    with _one_thread():
        parts = [
            _measure(reference[i : i + rows], serving[i : i + rows], tokens[i : i + rows], temperature) for i in starts
        ]
    return Divergence(**{f.name: torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Divergence)})


@contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _measure(reference: Tensor, serving: Tensor, tokens: Tensor, temperature: float) -> Divergence:
    z, served = reference.double() / temperature, serving.double() / temperature
    (top, greedy), (top_serving, greedy_serving) = z.max(-1), served.max(-1)
    p, log_total = _softmax(z, top)
    q, log_total_serving = _softmax(served, top_serving)
    given = tokens.unsqueeze(-1)
    difference = served.sub_(z)
    half_span = _half_span(difference)
    logp_reference = z.gather(-1, given).squeeze(-1) - log_total
    logp_serving = serving.gather(-1, given).squeeze(-1).double() / temperature - log_total_serving
    log_ratio = difference.sub_((log_total_serving - log_total).unsqueeze(-1))
    measures = {
        "half_span": half_span,
        "tv": (p - q).abs_().sum(-1) / 2,
        "kl_reference_serving": _kl(p, q, log_ratio),
        "kl_serving_reference": _kl(q, p, -log_ratio),
        "margin": top - z.scatter_(-1, greedy.unsqueeze(-1), -torch.inf).amax(-1),
        "entropy": torch.special.entr(p).sum(-1),
        "logp_reference": logp_reference,
        "logp_serving": logp_serving,
        "top_reference": p.amax(-1).log(),
        "top_serving": q.amax(-1).log(),
    }
    missing = ~(log_total.isfinite() & log_total_serving.isfinite())
    found = {name: measure.masked_fill(missing, torch.nan) for name, measure in measures.items()}
    found["greedy_reference"], found["greedy_serving"] = greedy, greedy_serving
    found["flip"] = (greedy != greedy_serving) & ~missing
    found["identical"] = _identical(reference, serving)
    return Divergence(**found)


def _softmax(z: Tensor, top: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities and the log of their normaliser; it is not finite for a row that cannot be measured."""
    weights = (z - top.unsqueeze(-1)).exp_()
    total = weights.sum(-1)
    return weights.div_(total.unsqueeze(-1)), top + total.log()


def _half_span(difference: Tensor) -> Tensor:
    """Return half the range of each row; a token masked on both sides (NaN) is left out, on one side gives inf."""
    smallest, largest = difference.aminmax(dim=-1)
    if smallest.isnan().any():
        both = difference.isnan()
        smallest = difference.masked_fill(both, torch.inf).amin(-1)
        largest = difference.masked_fill(both, -torch.inf).amax(-1)
    return (largest - smallest) / 2


def _kl(p: Tensor, q: Tensor, log_ratio: Tensor) -> Tensor:
    """Return KL(P || Q) as the sum of p (expm1(l) - l), never negative and exact where l is small."""
    total = log_ratio.expm1().sub_(log_ratio).mul_(p).sum(-1)
    unusual = ~total.isfinite()
    if unusual.any():
        total[unusual] = _kl_of_any(p[unusual], q[unusual], log_ratio[unusual])
    return total


def _kl_of_any(p: Tensor, q: Tensor, log_ratio: Tensor) -> Tensor:
    """Return the same sum for rows with masks or huge differences.

    Where l is large a term is written q - p - p l, which cannot overflow. It is q where P masks the token (l = inf),
    inf where only Q does (l = -inf), and nothing where both do (l is NaN).
    """
    small = log_ratio.clamp(max=1)
    terms = torch.where(log_ratio < 1, p * (small.expm1() - small), q - p - p * log_ratio)
    terms = torch.where(log_ratio.isposinf(), q, terms)
    terms = terms.masked_fill(log_ratio.isneginf(), torch.inf)
    return terms.masked_fill(log_ratio.isnan(), 0.0).sum(-1)


def _identical(reference: Tensor, serving: Tensor) -> Tensor:
    if reference.dtype != serving.dtype:
        return torch.zeros(len(reference), dtype=torch.bool, device=reference.device)
    bits = _BITS[reference.element_size()]
    same = (reference.contiguous().view(bits) == serving.contiguous().view(bits)).all(-1)
    return same & ~reference.isnan().any(-1)
