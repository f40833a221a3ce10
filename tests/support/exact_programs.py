"""Exact small softmax models: two programs' logits at random, and language models whose every answer is enumerated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st

from snapline.contracts.clauses import Numerical, Runtime, Statistical
from snapline.contracts.clauses.protocol import Clause, Measured
from snapline.contracts.kernels.reference import divergence

SLACK = 1e-9
SEEDS = st.integers(0, 2**32)
DISTANCES = st.sampled_from([1e-3, 0.1, 1.0, 5.0])


def clause(word: str, written: Any) -> Clause:
    for group in (Numerical, Statistical, Runtime):
        if word in group.model_fields:
            found = getattr(group.model_validate({word: written}), word)
            assert isinstance(found, Clause)
            return found
    raise AssertionError(word)


def softmax(z: np.ndarray) -> np.ndarray:
    weights = np.exp(z - z.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


@dataclass(frozen=True)
class Programs:
    """Two programs' logits of shape (prompts, positions, vocabulary), and the tokens that were scored."""

    z: np.ndarray
    served: np.ndarray
    tokens: np.ndarray

    def measured(self, **given: np.ndarray) -> Measured:
        prompts, positions, vocabulary = self.z.shape
        flat = [torch.from_numpy(logits.reshape(-1, vocabulary)) for logits in (self.z, self.served)]
        found = divergence(*flat, torch.from_numpy(self.tokens.reshape(-1)))
        columns = {name: getattr(found, name).numpy() for name in found.__slots__}
        columns |= {"position": np.tile(np.arange(positions), prompts), "token": self.tokens.reshape(-1)}
        return Measured(
            prompts=tuple(f"p{number}" for number in range(prompts)),
            starts=np.arange(prompts) * positions,
            columns=columns,
            given=given,
        )


@st.composite
def programs(draw: st.DrawFn) -> Programs:
    rng = np.random.default_rng(draw(SEEDS))
    shape = draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.sampled_from([2, 3, 12]))
    z = rng.normal(size=shape) * draw(st.sampled_from([0.1, 2.0, 9.0]))
    served = z + draw(DISTANCES) * rng.normal(size=shape) + rng.normal(size=(*shape[:2], 1))
    return Programs(z, served, rng.integers(shape[2], size=shape[:2]))


Model = Callable[[tuple[int, ...]], np.ndarray]
VOCABULARY, HORIZON = 3, 3


def model(seed: int, spread: float) -> Model:
    """Return a language model whose next token depends on all before it; token 0 ends an answer."""
    return lambda seen: np.random.default_rng([seed, len(seen), *seen]).normal(size=VOCABULARY) * spread


def near(one: Model, seed: int, distance: float) -> Model:
    return lambda seen: one(seen) + model(seed, distance)(seen)


def answers(tokens: int, seen: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Yield every answer of at most so many tokens."""
    if len(seen) == tokens or seen[-1:] == (0,):
        yield seen
    else:
        for token in range(VOCABULARY):
            yield from answers(tokens, (*seen, token))


def log_probabilities(one: Model, answer: tuple[int, ...]) -> np.ndarray:
    return np.array([np.log(softmax(one(answer[:i]))[token]) for i, token in enumerate(answer)])


def drawn(reference: Model, serving: Model, tokens: int) -> tuple[Measured, np.ndarray, np.ndarray]:
    """Return every answer as if it had been drawn, and its probability by either model."""
    whole = list(answers(tokens))
    p, q = ([log_probabilities(one, answer) for answer in whole] for one in (reference, serving))
    lengths = np.array([len(answer) for answer in whole])
    columns = {
        "position": np.concatenate([np.arange(length) for length in lengths]),
        "token": np.concatenate([np.array(answer) for answer in whole]),
        "logp_reference": np.concatenate(p),
        "logp_serving": np.concatenate(q),
    }
    next_tokens = [softmax(serving(answer[:i])) for answer in whole for i in range(len(answer))]
    columns["greedy_serving"] = np.array([int(q.argmax()) for q in next_tokens])
    columns["top_serving"] = np.log([q.max() for q in next_tokens])
    seen = Measured(tuple(map(str, whole)), np.cumsum(lengths) - lengths, columns)
    return seen, *(np.exp([logs.sum() for logs in side]) for side in (p, q))


def expected(promise: Clause, reference: Model, serving: Model) -> float:
    """Return the exact expectation of a clause's figure over the answers the serving model draws."""
    seen, _, q = drawn(reference, serving, HORIZON)
    return float(q @ promise.units(promise.relevant(seen)))
