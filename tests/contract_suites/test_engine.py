"""One suite for every engine: stored logits, transformers and vLLM, all on the same tiny random model in float32."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path as FilePath

import pytest
import torch
from tiny_model import VOCABULARY, write_tiny_model

from snapline.contracts.engines.client import WorkerEngine
from snapline.contracts.engines.protocol import Batching, Engine, EngineSpec, Path, ProbeItem
from snapline.contracts.engines.replay import ReplayEngine
from snapline.lineage.errors import DefinitionError

TOLERANCE = 1e-4
CONTEXT_TOKENS = 64


def item(number: int, prompt: int, answer: int) -> ProbeItem:
    tokens = torch.randint(2, VOCABULARY, (prompt + answer,), generator=torch.Generator().manual_seed(number)).tolist()
    return ProbeItem(f"p{number}", tuple(tokens[:prompt]), tuple(tokens[prompt:]))


ITEMS = [item(n, p, a) for n, (p, a) in enumerate([(5, 3), (1, 1), (23, 9), (12, 4), (7, 1), (40, 6), (2, 12), (9, 2)])]
TOO_LONG = item(99, 60, 6)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> FilePath:
    return write_tiny_model(tmp_path_factory.mktemp("tiny-model"))


@pytest.fixture(scope="module")
def start(model: FilePath, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], WorkerEngine]:
    def make(engine: str, dtype: str = "float32") -> WorkerEngine:
        return WorkerEngine(
            EngineSpec(engine, dtype, os.environ.get("SNAPLINE_TEST_DEVICE", "cpu"), context_tokens=CONTEXT_TOKENS),
            model,
            workdir=tmp_path_factory.mktemp(engine),
            timeout_seconds=300,
            report=lambda _: None,
            environment={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    return make


@pytest.fixture(scope="module")
def reference(start: Callable[[str], WorkerEngine]) -> Iterator[WorkerEngine]:
    with start("transformers") as engine:
        yield engine


@pytest.fixture(
    scope="module", params=["replay", "transformers", pytest.param("vllm", marks=pytest.mark.engine)], ids=str
)
def engine(
    request: pytest.FixtureRequest, reference: WorkerEngine, start: Callable[[str], WorkerEngine]
) -> Iterator[Engine]:
    if request.param == "transformers":
        yield reference
    elif request.param == "vllm":
        with start("vllm") as vllm:
            yield vllm
    else:
        ways = [(path, batching) for path in Path for batching in Batching]
        yield ReplayEngine(reference.identity, {way: reference.score(ITEMS, *way) for way in ways})


WAYS = [(path, batching) for path in Path for batching in Batching]


@pytest.mark.parametrize(("path", "batching"), WAYS)
def test_every_way_gives_the_reference_s_logits(
    engine: Engine, reference: WorkerEngine, path: Path, batching: Batching
) -> None:
    expected = reference.score(ITEMS, Path.PREFILL, Batching.ALONE)
    found = engine.score(ITEMS, path, batching)
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


@pytest.mark.parametrize(("path", "batching"), WAYS)
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


def test_the_identity_says_what_runs(engine: Engine) -> None:
    identity = engine.identity
    assert identity.engine in ("transformers", "vllm")
    assert (identity.dtype, identity.device, identity.vocabulary) == ("float32", "cpu", VOCABULARY)
    assert identity.evidence_class == "cpu"
    assert identity.device_name
    assert identity.version[0].isdigit()
    assert identity.settings["logits"] == "raw"
    assert identity.settings["threads"] == "1"
    assert identity.libraries["torch"]
    assert all(isinstance(value, str) for value in (*identity.settings.values(), *identity.libraries.values()))


def test_closing_twice_is_fine(reference: WorkerEngine) -> None:
    replayed = ReplayEngine(reference.identity, {})
    replayed.close()
    replayed.close()


def test_a_closed_worker_says_so(start: Callable[[str], WorkerEngine]) -> None:
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


@pytest.mark.engine
def test_both_engines_answer_alike_in_float32(reference: WorkerEngine, start: Callable[[str], WorkerEngine]) -> None:
    prompt = ITEMS[3].prompt
    with start("vllm") as vllm:
        ours, theirs = reference.generate(prompt, 6), vllm.generate(prompt, 6)
        assert vllm.tokenize(["hi"], ["ho"]) == reference.tokenize(["hi"], ["ho"])
    assert ours.tokens == theirs.tokens
    assert ours.text == theirs.text
    assert [token for token, _, _ in ours.first] == [token for token, _, _ in theirs.first]
    assert [logit for *_, logit in ours.first] == pytest.approx([logit for *_, logit in theirs.first], abs=TOLERANCE)
    assert ours.first[0][2] >= ours.first[1][2]
