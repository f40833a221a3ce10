"""How fast rows of logits are compared, beside what one would write in torch, and what usual figures tell of them."""

from __future__ import annotations

import math
import os
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from snapline.cli.benchmarks.measuring import Row
from snapline.contracts.kernels import reference as plain
from snapline.contracts.kernels.choose import Backend, backend, divergence

VOCABULARY = 151_936
ROWS = 64
GIGA = 1e9
TARGET = 15.0
COPY_SHARE = 0.85
_CHAIN = "torch, separate operations"
_AIMED = "Snapline, every core, fp32"
_TINY = 1e-4

Work = Callable[[], object]


def measure(rows: int = ROWS, vocabulary: int = VOCABULARY, *, compiled: bool = True) -> list[Row]:
    """Return how fast inputs are read by each way of comparing them, and what each way tells.

    Args:
        rows: How many pairs of rows.
        compiled: Also time the separate operations under `torch.compile`, which takes most of a minute.
    """
    z, served, tokens = pair(rows, vocabulary)
    found = _speeds(z, served, tokens, compiled=compiled)
    return [*found, *_answers(z, served), *_tiny(vocabulary), _llama(), *_cuda(z, served, tokens)]


def pair(rows: int, vocabulary: int, distance: float = 0.1) -> tuple[Tensor, Tensor, Tensor]:
    """Return reference logits, serving logits and tokens drawn from the serving engine's distribution."""
    random = torch.Generator().manual_seed(0)
    z = torch.randn(rows, vocabulary, generator=random) * 3
    served = z + distance * torch.randn(rows, vocabulary, generator=random)
    return z, served, torch.multinomial(served.softmax(-1), 1, generator=random).squeeze(-1)


def chain(z: Tensor, served: Tensor, tokens: Tensor) -> dict[str, Tensor]:
    """Return the measures by their formulas, written down in the logits' own precision, one operation after another."""
    log_p, log_q = z.log_softmax(-1), served.log_softmax(-1)
    p, q, log_ratio = log_p.exp(), log_q.exp(), log_q - log_p
    d, largest, given = served - z, z.topk(2).values, tokens.unsqueeze(-1)
    return {
        "half_span": (d.amax(-1) - d.amin(-1)) / 2,
        "tv": (p - q).abs().sum(-1) / 2,
        "kl_reference_serving": (p * (log_ratio.expm1() - log_ratio)).sum(-1),
        "kl_serving_reference": (q * ((-log_ratio).expm1() + log_ratio)).sum(-1),
        "margin": largest[:, 0] - largest[:, 1],
        "entropy": torch.special.entr(p).sum(-1),
        "logp_reference": log_p.gather(-1, given).squeeze(-1),
        "logp_serving": log_q.gather(-1, given).squeeze(-1),
        "top_reference": log_p.amax(-1),
        "top_serving": log_q.amax(-1),
        "flip": z.argmax(-1) != served.argmax(-1),
        "identical": (z == served).all(-1),
    }


def per_token(z: Tensor, served: Tensor, tokens: Tensor) -> dict[str, float]:
    """Return what trainers log of sampled tokens' log-probabilities, by their formulas, averaged over the tokens.

    With r = log p - log q of a token drawn from Q: verl logs k1 = -r, k3 = e^r - 1 - r and |e^(log p) - e^(log q)|, TRL
    logs |r|.
    """
    given = tokens.unsqueeze(-1)
    log_p, log_q = (logits.log_softmax(-1).gather(-1, given).squeeze(-1) for logits in (z, served))
    r = log_p - log_q
    figures = {
        "k1": -r,
        "k3": r.exp() - 1 - r,
        "|p - q|": (log_p.exp() - log_q.exp()).abs(),
        "|log p - log q|": r.abs(),
    }
    return {name: float(figure.mean()) for name, figure in figures.items()}


def _speeds(z: Tensor, served: Tensor, tokens: Tensor, *, compiled: bool) -> list[Row]:
    cores, kind = len(os.sched_getaffinity(0)), backend(z, served)
    halves = z.bfloat16(), served.bfloat16()
    ways: dict[str, tuple[Work, int]] = {
        _CHAIN: (lambda: chain(z, served, tokens), 4),
        "float64, one thread": (lambda: plain.divergence(z, served, tokens), 4),
        "log-probs of the tokens alone": (lambda: per_token(z, served, tokens), 4),
        f"Snapline ({kind}), one thread": (lambda: divergence(z, served, tokens), 4),
        f"{_AIMED}": (lambda: divergence(z, served, tokens, threads=cores), 4),
        f"Snapline ({kind}), every core, bf16": (lambda: divergence(*halves, tokens, threads=cores), 2),
        "summing the same bytes": (lambda: (z.sum(), served.sum()), 4),
    }
    if compiled and (shutil.which("g++") or shutil.which("clang++")):
        fused = torch.compile(chain, dynamic=False)
        ways["torch.compile of the same"] = (lambda: fused(z, served, tokens), 4)
    times = rounds({name: work for name, (work, _) in ways.items()})
    read, base = 2 * z.numel(), times[_CHAIN]
    found = [_row(name, read * size, times[name], read * 4, base) for name, (_, size) in ways.items()]
    if compiled and "torch.compile of the same" not in ways:
        found.append(not_run("kernel", "torch.compile of the same: there is no C++ compiler"))
    return found


SETTLE_SECONDS = 0.3
"""OpenMP's threads go on spinning for a fifth of a second after their work, on a core that the next way would want."""


def rounds(ways: dict[str, Work], repeats: int = 5) -> dict[str, list[float]]:
    """Return the seconds each way took, round by round: in a round each has its turn, so that all share its weather."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for counted in (False, *[True] * repeats):
        for name, work in ways.items():
            time.sleep(SETTLE_SECONDS)
            started = time.perf_counter()
            work()
            if counted:
                times[name].append(time.perf_counter() - started)
    return times


def _row(what: str, read: int, seconds: list[float], chain_read: int, chain_seconds: list[float]) -> Row:
    """Return a row of how fast inputs are read; its ratio is the median of the rounds'."""
    ratios = [read / mine / (chain_read / theirs) for mine, theirs in zip(seconds, chain_seconds, strict=True)]
    ratio, aimed = statistics.median(ratios), what.startswith(_AIMED)
    target, met = (f"at least {TARGET:.0f}x", ratio >= TARGET) if aimed else ("", None)
    return Row("kernel", what, read / statistics.median(seconds) / GIGA, "GB/s", ratio, _CHAIN, target, met)


def not_run(subject: str, why: str) -> Row:
    """Return a row for what could not be measured here."""
    return Row(subject, why, 0.0, "not run")


def _answers(z: Tensor, served: Tensor) -> list[Row]:
    """Return what is told of two engines of which one has a fault that the drawn tokens hardly show.

    The fault: on one row alone, a token that was unlikely becomes the likeliest by far.
    """
    rare = served.clone()
    rare[0, 7] = served[0].max() + 3
    tokens = torch.multinomial(served.softmax(-1), 1, generator=torch.Generator().manual_seed(1)).squeeze(-1)
    found = []
    for name, other in (("honest", served), ("one row wrong", rare)):
        measures = divergence(z, other, tokens)
        told = per_token(z, other, tokens) | {
            "mean TV": float(measures.tv.mean()),
            "mean KL(Q || P)": float(measures.kl_serving_reference.mean()),
            "largest half span": float(measures.half_span.max()),
        }
        by = {"k1": "verl", "k3": "verl", "|p - q|": "verl", "|log p - log q|": "TRL"}
        found += [
            Row("told", f"{name}: {figure} ({by.get(figure, 'Snapline')})", value, "") for figure, value in told.items()
        ]
    return found


def _tiny(vocabulary: int) -> list[Row]:
    """Return how far KL is from the truth at a tiny half span: summing p log(p/q), by the chain, by the kernel."""
    z, _, tokens = pair(2, vocabulary)
    random = torch.Generator().manual_seed(2)
    served = (z.double() + _TINY * (2 * torch.rand(z.shape, generator=random, dtype=torch.float64) - 1)).float()
    truth = plain.divergence(z, served, tokens).kl_reference_serving
    log_p, log_q = z.log_softmax(-1), served.log_softmax(-1)
    ways = {
        "sum of p log(p/q), float32": (log_p.exp() * (log_p - log_q)).sum(-1),
        f"{_CHAIN}, float32": chain(z, served, tokens)["kl_reference_serving"],
        "Snapline": divergence(z, served, tokens).kl_reference_serving,
    }
    return [
        Row(
            "exact",
            f"KL at half span {_TINY:g}, off by: {name}",
            float(((kl - truth) / truth).abs().max()),
            "of itself",
        )
        for name, kl in ways.items()
    ]


def _llama() -> Row:
    if shutil.which("llama-perplexity") is None:
        return not_run("kernel", "llama.cpp --kl-divergence: there is no llama-perplexity here")
    return not_run("kernel", "llama.cpp --kl-divergence: it computes its own logits and reads no others")


def _cuda(z: Tensor, served: Tensor, tokens: Tensor) -> list[Row]:
    """Return how fast the Triton kernel reads its inputs, beside a copy on the device."""
    if not torch.cuda.is_available():
        return [not_run("kernel", "Triton: there is no CUDA device here")]
    if backend(z.cuda(), served.cuda()) != Backend.TRITON:
        return [not_run("kernel", "Triton: it is not installed")]
    from snapline.contracts.kernels.triton_kernel import launch

    times = math.ceil(2048 / len(z))
    left, right, given = (tensor.cuda().repeat(times, *[1] * (tensor.ndim - 1)) for tensor in (z, served, tokens))
    size, target = 2 * left.numel() * 4, torch.empty_like(left)
    copied = size / _device_seconds(lambda: target.copy_(left)) / GIGA  # a copy reads and writes
    found = [Row("kernel", "device copy, read and written", copied, "GB/s")]
    for name, pairs in {"float32": (left, right), "bfloat16": (left.bfloat16(), right.bfloat16())}.items():
        read = 2 * left.numel() * pairs[0].element_size()
        speed = read / _device_seconds(partial(launch, *pairs, given, 1.0)) / GIGA
        met = speed / copied >= COPY_SHARE if name == "float32" else None
        aim = f"at least {COPY_SHARE}x" if name == "float32" else ""
        found.append(Row("kernel", f"Triton, {name}", speed, "GB/s", speed / copied, "device copy", aim, met))
    return found


def _device_seconds(work: Work, repeats: int = 20) -> float:
    """Return the mean time of some work on the device, after three runs that are not counted."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / repeats
