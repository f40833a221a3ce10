"""What engines refuse alike, which prompts fit, and whose draws are whose."""

from __future__ import annotations

import math
import subprocess
import sys

import pytest

from snapline.contracts.engines.admission import (
    fitting,
    require_caching,
    require_sampling,
    require_scoring,
    require_tokens,
    seed_of,
)
from snapline.contracts.engines.memory import peak_bytes
from snapline.contracts.engines.protocol import Cache, Path, ProbeItem, Sampling
from snapline.lineage.errors import DefinitionError

MEBIBYTE = 2**20


def test_a_seed_depends_on_seed_and_prompt_alone_and_never_changes() -> None:
    assert seed_of(0, "chats:17") == 60268812688763370
    seeds = {seed_of(seed, prompt) for seed in range(40) for prompt in ("a", "b", "0 a", "")}
    assert len(seeds) == 160
    assert all(0 <= seed < 2**56 for seed in seeds)


def test_items_fit_with_their_answer_or_with_room_for_one() -> None:
    short, long = ProbeItem("short", (1, 2), (3,)), ProbeItem("long", (1, 2), (3, 4))
    assert fitting([short, long], 3) == [short]
    assert fitting([short, long], 4) == [short, long]
    assert fitting([short, long], 4, max_tokens=2) == [short, long]
    assert fitting([short, long], 4, max_tokens=3) == []


def test_only_paths_with_given_tokens_are_scored() -> None:
    require_scoring(Path.PREFILL)
    require_scoring(Path.DECODE_FORCED)
    with pytest.raises(DefinitionError, match="decode-sampled"):
        require_scoring(Path.DECODE_SAMPLED)


def test_warm_needs_an_engine_that_keeps_prefixes() -> None:
    require_caching(Cache.COLD, prefix_caching=False)
    require_caching(Cache.WARM, prefix_caching=True)
    with pytest.raises(DefinitionError, match="prefix caching is off"):
        require_caching(Cache.WARM, prefix_caching=False)


@pytest.mark.parametrize("temperature", [0.0, -0.5, math.inf, math.nan])
def test_a_temperature_is_a_finite_number_above_0(temperature: float) -> None:
    require_sampling(Sampling(1, 1e-6))
    with pytest.raises(DefinitionError, match="temperature"):
        require_sampling(Sampling(1, temperature))


def test_an_engine_s_own_range_of_temperatures_includes_its_ends() -> None:
    for temperature in (0.01, 2.0):
        require_sampling(Sampling(1, temperature), (0.01, 2.0))
    for temperature in (0.009, 2.1):
        with pytest.raises(DefinitionError, match="temperature") as caught:
            require_sampling(Sampling(1, temperature), (0.01, 2.0))
        assert "0.01 to 2" in caught.value.hint


def test_at_least_one_token_is_generated() -> None:
    require_tokens(1)
    with pytest.raises(DefinitionError, match="0 tokens"):
        require_sampling(Sampling(0))


def test_a_process_s_peak_is_its_own_and_not_its_parent_s() -> None:
    """Whoever starts an engine may be larger than it; `getrusage` would report the larger."""
    held = bytearray(256 * MEBIBYTE)
    before = peak_bytes("cpu")
    assert before > len(held)
    code = (
        f"import sys; sys.path[:0] = {[entry for entry in sys.path if entry]!r}\n"
        "from snapline.contracts.engines.memory import peak_bytes\n"
        f"small = peak_bytes('cpu'); held = bytearray({64 * MEBIBYTE}); print(small, peak_bytes('cpu'))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    small, grown = map(int, done.stdout.split())
    assert MEBIBYTE < small < len(held)
    assert grown > 64 * MEBIBYTE
