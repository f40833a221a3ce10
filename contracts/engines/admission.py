"""What every engine decides before it runs anything: what it refuses, which prompts fit, and each prompt's own seed."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

from snapline.contracts.engines.protocol import Cache, Path, ProbeItem, Sampling
from snapline.lineage.errors import DefinitionError

SEED_BYTES = 7


def require_scoring(path: Path) -> None:
    """Raise unless the path scores given tokens.

    Raises:
        DefinitionError: It is `decode-sampled`, whose tokens the engine draws.
    """
    if path == Path.DECODE_SAMPLED:
        raise DefinitionError(
            f"path {path} has no given tokens to score", hint="Let the engine sample, then score its answers."
        )


def require_caching(cache: Cache, *, prefix_caching: bool) -> None:
    """Raise unless the engine keeps prefixes, if they are to be found warm.

    Raises:
        DefinitionError: Warm was asked of an engine without prefix caching.
    """
    if cache == Cache.WARM and not prefix_caching:
        raise DefinitionError(
            "a warm measurement needs an engine that keeps prefixes, but prefix caching is off",
            hint="Start the engine with prefix_caching: true, or measure cold.",
        )


def require_sampling(sampling: Sampling, temperatures: tuple[float, float] = (0.0, math.inf)) -> None:
    """Raise unless something can be drawn.

    Args:
        temperatures: The lowest and highest temperature that the engine takes as it is, besides 0 and infinity.

    Raises:
        DefinitionError: The temperature is not among them, or no token is asked for.
    """
    low, high = temperatures
    if not (low <= sampling.temperature <= high and 0 < sampling.temperature < math.inf):
        wanted = f"from {low:g} to {high:g}" if math.isfinite(high) else "a finite one above 0"
        raise DefinitionError(
            f"cannot sample at temperature {sampling.temperature:g}", hint=f"Give another temperature, {wanted}."
        )
    require_tokens(sampling.max_tokens)


def require_tokens(max_tokens: int) -> None:
    """Raise unless at least one token is to be generated.

    Raises:
        DefinitionError: It is less.
    """
    if max_tokens < 1:
        raise DefinitionError(f"cannot generate {max_tokens} tokens", hint="Ask for at least one.")


def fitting(items: Sequence[ProbeItem], longest: int, *, max_tokens: int | None = None) -> list[ProbeItem]:
    """Return the items of at most `longest` tokens: prompt and given answer, or prompt and `max_tokens` more."""
    return [i for i in items if len(i.prompt) + (len(i.answer) if max_tokens is None else max_tokens) <= longest]


def seed_of(seed: int, prompt: str) -> int:
    """Return a prompt's own seed, from 0 to 2**56 - 1: the same in every batch, process and version of Python."""
    digest = hashlib.blake2b(f"{seed} {prompt}".encode(), digest_size=SEED_BYTES)
    return int.from_bytes(digest.digest(), "big")
