"""One suite for every engine: stored logits, transformers and vLLM, all on the same tiny random model in float32.

vLLM runs three times: as it is; with prompts computed in pieces and prefixes kept; and compiled on two ranks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath
from typing import Any

import pytest
import torch
from scipy.stats import binom
from tiny_model import EOS, VOCABULARY, write_tiny_model

from snapline.contracts.engines.client import WorkerEngine
from snapline.contracts.engines.protocol import Batching, Cache, Engine, EngineSpec, Path, ProbeItem, Sampling
from snapline.contracts.engines.replay import ReplayEngine
from snapline.contracts.errors import EngineUnavailableError
from snapline.lineage.errors import DefinitionError

DEVICE = os.environ.get("SNAPLINE_TEST_DEVICE", "cpu")
TOLERANCE = 1e-4
CONTEXT_TOKENS = 128
SETTINGS: dict[str, dict[str, Any]] = {
    "transformers": {"prefix_caching": True},
    "vllm": {},
    "vllm-in-pieces": {"chunked_prefill": True, "prefix_caching": True, "threads": 2},
    "vllm-compiled-on-two-ranks": {"cuda_graphs": True, "tensor_parallel": 2},
}
LIVE = [pytest.param(name, marks=[pytest.mark.engine] if "vllm" in name else []) for name in SETTINGS]


def item(number: int, prompt: int, answer: int) -> ProbeItem:
    tokens = torch.randint(2, VOCABULARY, (prompt + answer,), generator=torch.Generator().manual_seed(number)).tolist()
    return ProbeItem(f"p{number}", tuple(tokens[:prompt]), tuple(tokens[prompt:]))


SHORT = [(5, 3), (1, 1), (23, 9), (12, 4), (7, 1), (40, 6), (2, 12), (9, 2)]
IN_PIECES = [(90, 5), (32, 2), (33, 40), (64, 3), (65, 33)]
ITEMS = [item(number, *lengths) for number, lengths in enumerate(SHORT + IN_PIECES)]
TOO_LONG = item(99, 125, 6)
SAMPLING = Sampling(max_tokens=8, temperature=2.0, seed=3)
FEW = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> FilePath:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="module")
def start(model: FilePath, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., WorkerEngine]:
    def make(engine: str, **settings: Any) -> WorkerEngine:
        return WorkerEngine(
            EngineSpec(engine, "float32", DEVICE, context_tokens=CONTEXT_TOKENS, **settings),
            model,
            workdir=tmp_path_factory.mktemp(engine),
            timeout_seconds=300,
            report=lambda _: None,
            environment={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    return make


@pytest.fixture(scope="module")
def reference(start: Callable[..., WorkerEngine]) -> Iterator[WorkerEngine]:
    with start("transformers", **SETTINGS["transformers"]) as engine:
        yield engine


@pytest.fixture(scope="module", params=[*LIVE, "replay"], ids=str)
def engine(
    request: pytest.FixtureRequest, reference: WorkerEngine, start: Callable[..., WorkerEngine]
) -> Iterator[Engine]:
    if request.param == "transformers":
        yield reference
    elif request.param == "replay":
        yield ReplayEngine(
            reference.identity,
            {way: reference.score(ITEMS, *way) for way in WAYS},
            {how: reference.sample(ITEMS, SAMPLING, *how) for how in CONDITIONS},
            {batching: reference.timed(ITEMS[:FEW], 5, batching) for batching in Batching},
        )
    else:
        with start("vllm", **SETTINGS[request.param]) as vllm:
            yield vllm


live = pytest.mark.parametrize("engine", LIVE, indirect=True)
CONDITIONS = [(batching, cache) for batching in Batching for cache in Cache]
WAYS = [(path, *how) for path in (Path.PREFILL, Path.DECODE_FORCED) for how in CONDITIONS]


def can_be(cache: Cache, engine: Engine, path: Path = Path.DECODE_FORCED) -> bool:
    """Return whether the engine has that cache on that path; vLLM never reads its own while it scores a prompt."""
    kept = engine.identity.settings["prefix_caching"] == "true"
    return cache == Cache.COLD or (kept and not (engine.identity.engine == "vllm" and path == Path.PREFILL))


@pytest.mark.parametrize(("path", "batching", "cache"), WAYS)
def test_every_way_gives_the_reference_s_logits(
    engine: Engine, reference: WorkerEngine, path: Path, batching: Batching, cache: Cache
) -> None:
    if not can_be(cache, engine, path):
        with pytest.raises(DefinitionError, match=r"a warm (measurement needs|prefill would)"):
            engine.score(ITEMS, path, batching, cache)
        return
    expected = reference.score(ITEMS, Path.PREFILL, Batching.ALONE)
    found = engine.score(ITEMS, path, batching, cache)
    assert list(found) == [item.id for item in ITEMS]
    for probe in ITEMS:
        assert found[probe.id].shape == (len(probe.answer), VOCABULARY)
        assert found[probe.id].dtype == torch.float32
        torch.testing.assert_close(found[probe.id], expected[probe.id], rtol=0, atol=TOLERANCE)


def test_no_two_prompts_have_the_same_logits(reference: WorkerEngine) -> None:
    """Otherwise the comparison above could not tell a row from its neighbour."""
    rows = torch.cat(list(reference.score(ITEMS, Path.PREFILL, Batching.BATCHED).values()))
    distances = torch.cdist(rows, rows, p=torch.inf) + torch.eye(len(rows)) * 1e9
    assert distances.min() > 1000 * TOLERANCE


@pytest.mark.parametrize(
    ("path", "batching"), [(path, batching) for path, batching, cache in WAYS if cache == Cache.COLD]
)
def test_order_and_repetition_change_no_bit(engine: Engine, path: Path, batching: Batching) -> None:
    first, again = engine.score(ITEMS, path, batching), engine.score(ITEMS, path, batching)
    backwards = engine.score(ITEMS[::-1], path, Batching.ALONE)
    assert list(backwards) == [item.id for item in ITEMS[::-1]]
    for probe in ITEMS:
        assert torch.equal(first[probe.id], again[probe.id])
        torch.testing.assert_close(backwards[probe.id], first[probe.id], rtol=0, atol=TOLERANCE)


def test_a_prompt_that_cannot_be_scored_is_absent(engine: Engine) -> None:
    found = engine.score([TOO_LONG, ITEMS[0]], Path.PREFILL, Batching.BATCHED)
    assert list(found) == [ITEMS[0].id]
    assert not engine.score([TOO_LONG], Path.DECODE_FORCED, Batching.BATCHED)
    assert not engine.score([], Path.PREFILL, Batching.BATCHED)


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (ProbeItem("x", (5,), ()), "empty answer"),
        (ProbeItem("x", (), (5,)), "empty prompt"),
        (ProbeItem("x", (5, VOCABULARY), (5,)), f"token {VOCABULARY}.*0 to {VOCABULARY - 1}"),
        (ProbeItem("x", (5,), (-1,)), "token -1"),
        (ProbeItem(ITEMS[0].id, (5,), (5,)), "twice"),
    ],
)
def test_a_malformed_probe_is_refused_and_the_engine_goes_on(engine: Engine, bad: ProbeItem, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        engine.score([ITEMS[0], bad], Path.PREFILL, Batching.BATCHED)
    assert ITEMS[0].id in engine.score([ITEMS[0]], Path.PREFILL, Batching.BATCHED)


def test_the_identity_says_what_runs(engine: Engine, request: pytest.FixtureRequest) -> None:
    identity = engine.identity
    asked = EngineSpec("", "", **SETTINGS.get(request.node.callspec.params["engine"], SETTINGS["transformers"]))
    assert identity.engine in ("transformers", "vllm")
    assert (identity.dtype, identity.device.partition(":")[0], identity.vocabulary) == ("float32", DEVICE, VOCABULARY)
    assert identity.evidence_class == ("cpu" if DEVICE == "cpu" else "gpu-native")
    assert identity.device_name
    assert identity.version[0].isdigit()
    assert identity.settings["logits"] == "raw"
    assert identity.settings["threads"] == str(asked.threads or 1)
    assert identity.settings["prefix_caching"] == str(asked.prefix_caching).lower()
    assert identity.settings["chunked_prefill"] == str(asked.chunked_prefill).lower()
    assert identity.settings["execution"] == ("compiled" if asked.cuda_graphs else "eager")
    assert identity.settings["tensor_parallel"] == str(asked.tensor_parallel)
    assert identity.libraries["torch"]
    assert all(isinstance(value, str) for value in (*identity.settings.values(), *identity.libraries.values()))


def test_what_is_sampled_cannot_be_scored(engine: Engine) -> None:
    with pytest.raises(DefinitionError, match="decode-sampled has no given tokens"):
        engine.score(ITEMS, Path.DECODE_SAMPLED, Batching.BATCHED)


@pytest.mark.parametrize(("batching", "cache"), CONDITIONS)
def test_sampled_answers_carry_the_logits_they_were_drawn_from(
    engine: Engine, reference: WorkerEngine, batching: Batching, cache: Cache
) -> None:
    """The reference scores the very tokens that were drawn; temperature 2 is not in the logits."""
    if not can_be(cache, engine):
        with pytest.raises(DefinitionError, match="a warm measurement needs"):
            engine.sample(ITEMS, SAMPLING, batching, cache)
        return
    found = engine.sample([*ITEMS, TOO_LONG], SAMPLING, batching, cache)
    assert list(found) == [item.id for item in ITEMS]
    drawn = [ProbeItem(item.id, item.prompt, found[item.id].tokens) for item in ITEMS]
    expected = reference.score(drawn, Path.PREFILL, Batching.ALONE)
    for probe in drawn:
        assert found[probe.id].logits.shape == (len(probe.answer), VOCABULARY)
        torch.testing.assert_close(found[probe.id].logits, expected[probe.id], rtol=0, atol=TOLERANCE)


def tokens_of(
    engine: Engine, items: list[ProbeItem], sampling: Sampling, *how: Batching | Cache
) -> dict[str, tuple[int, ...]]:
    found = engine.sample(items, sampling, *how)  # type: ignore[arg-type]
    return {id: answer.tokens for id, answer in found.items()}


@live
def test_a_prompt_draws_the_same_wherever_it_runs_and_otherwise_with_another_seed_or_name(engine: Engine) -> None:
    first = tokens_of(engine, ITEMS, SAMPLING, Batching.BATCHED)
    assert tokens_of(engine, ITEMS[::-1], SAMPLING, Batching.BATCHED) == first
    for how in CONDITIONS:
        if can_be(how[1], engine):
            assert tokens_of(engine, ITEMS, SAMPLING, *how) == first
    other = tokens_of(engine, ITEMS, Sampling(SAMPLING.max_tokens, SAMPLING.temperature, seed=4), Batching.BATCHED)
    assert all(other[id] != tokens for id, tokens in first.items())
    twins = [ProbeItem(f"twin {number}", ITEMS[0].prompt, (5,)) for number in range(6)]
    assert len(set(tokens_of(engine, twins, SAMPLING, Batching.BATCHED).values())) == len(twins)


@live
@pytest.mark.parametrize("temperature", [0.8, 2.0])
def test_draws_follow_the_softmax_and_end_at_the_end_of_text(
    engine: Engine, reference: WorkerEngine, temperature: float
) -> None:
    """Of 400 draws, each common token's share is within an exact interval that an honest engine leaves once in 1e6."""
    starts = [ProbeItem(f"after {token}", (token,), (EOS,)) for token in range(2, VOCABULARY)]
    rows = reference.score(starts, Path.PREFILL, Batching.BATCHED)
    after = max(starts, key=lambda start: float((rows[start.id][0] / temperature).softmax(-1)[EOS]))
    chances = (rows[after.id][0].double() / temperature).softmax(-1)
    draws = [ProbeItem(f"draw {number}", after.prompt, (5,)) for number in range(400)]
    drawn = tokens_of(engine, draws, Sampling(3, temperature, seed=1), Batching.BATCHED)
    firsts = torch.tensor([tokens[0] for tokens in drawn.values()]).bincount(minlength=VOCABULARY)
    assert len(drawn) == firsts.sum() == 400
    for token in {EOS, *chances.topk(3).indices.tolist()}:
        low, high = binom.interval(1 - 1e-6, 400, float(chances[token]))
        assert low <= firsts[token] <= high
    assert firsts[EOS] > 0
    assert all(EOS not in tokens[:-1] for tokens in drawn.values())
    assert all(len(tokens) == 3 or tokens[-1] == EOS for tokens in drawn.values())


@pytest.mark.parametrize("sampling", [Sampling(4, 0.0), Sampling(4, float("nan")), Sampling(4, -1.0), Sampling(0, 1.0)])
def test_what_nobody_can_draw_is_refused_and_the_engine_goes_on(engine: Engine, sampling: Sampling) -> None:
    with pytest.raises(DefinitionError, match=r"cannot (sample at temperature|generate 0 tokens)"):
        engine.sample(ITEMS, sampling, Batching.BATCHED)
    assert engine.sample(ITEMS[:1], SAMPLING, Batching.BATCHED)


@pytest.mark.parametrize("batching", list(Batching))
def test_a_timing_counts_every_prompt_once_and_every_token(engine: Engine, batching: Batching) -> None:
    items = [TOO_LONG, *ITEMS[:FEW]]
    timings = engine.timed(items, 5, batching)
    assert [id for timing in timings for id in timing.prompts] == [item.id for item in ITEMS[:FEW]]
    assert len(timings) == (1 if batching == Batching.BATCHED else FEW)
    for timing in timings:
        assert timing.tokens == 5 * len(timing.prompts)
        assert timing.seconds > 0
        assert timing.peak_bytes > 2**20
    with pytest.raises(DefinitionError, match="cannot generate 0 tokens"):
        engine.timed(items, 0, batching)


@pytest.mark.parametrize("beyond", [{"chunked_prefill": True}, {"cuda_graphs": True}, {"tensor_parallel": 2}])
def test_transformers_refuses_what_it_does_not_do(start: Callable[..., WorkerEngine], beyond: dict[str, Any]) -> None:
    with pytest.raises(EngineUnavailableError, match=next(iter(beyond))):
        start("transformers", **beyond)


def test_closing_twice_is_fine(reference: WorkerEngine) -> None:
    replayed = ReplayEngine(reference.identity, {})
    replayed.close()
    replayed.close()


def test_a_closed_worker_says_so(start: Callable[..., WorkerEngine]) -> None:
    engine = start("transformers")
    engine.close()
    engine.close()
    with pytest.raises(Exception, match="after it ended"):
        engine.score(ITEMS, Path.PREFILL, Batching.BATCHED)


def test_tokens_are_the_model_s_own(reference: WorkerEngine) -> None:
    conversation = [{"role": "user", "content": "hi"}]
    (chat, plain), (answer,) = reference.tokenize([conversation, "hi"], ["hi"])
    assert plain == answer
    assert chat[0] == 0
    assert chat[-1] not in (0, 1)
    assert len(chat) > len(plain)


@live
def test_all_engines_answer_alike_in_float32(engine: WorkerEngine, reference: WorkerEngine) -> None:
    prompt = ITEMS[3].prompt
    ours, theirs = reference.generate(prompt, 6), engine.generate(prompt, 6)
    assert engine.tokenize(["hi"], ["ho"]) == reference.tokenize(["hi"], ["ho"])
    assert ours.tokens == theirs.tokens
    assert ours.text == theirs.text
    assert [token for token, _, _ in ours.first] == [token for token, _, _ in theirs.first]
    assert [logit for *_, logit in ours.first] == pytest.approx([logit for *_, logit in theirs.first], abs=TOLERANCE)
    assert ours.first[0][2] >= ours.first[1][2]
