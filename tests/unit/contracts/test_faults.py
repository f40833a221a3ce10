"""The faulty engines: each is honest but for its one fault, and the honest one is the same under every setting."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch

from snapline.contracts.clauses import Numerical, Runtime, Statistical
from snapline.contracts.contract import KernelContract
from snapline.contracts.engines.faulty.catalogue import FAULTS, HONEST, SPEC, Fault, started
from snapline.contracts.engines.faulty.program import MemoryEngine, one_thread
from snapline.contracts.engines.protocol import Batching, Cache, Path, ProbeItem, Sampling
from snapline.contracts.lint import require_attainable
from snapline.contracts.selftest import SelfTest, Trial, on_all_prompts, probe_items, selftest_contract
from snapline.contracts.verdict import Finding, Verdict

BY_NAME = {fault.name: fault for fault in FAULTS}
SAMPLING = Sampling(4, temperature=0.6)
GIVEN = (Path.PREFILL, Path.DECODE_FORCED)
Logits = Mapping[str, torch.Tensor]


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def items(alone: None) -> list[ProbeItem]:
    return probe_items(24)


def differing(left: Logits, right: Logits) -> int:
    return sum(not torch.equal(left[name], right[name]) for name in left)


def scored(engine: MemoryEngine, items: list[ProbeItem], path: Path, cache: Cache = Cache.COLD) -> Logits:
    return engine.score(items, path, Batching.BATCHED, cache)


def test_names_are_given_once_and_every_fault_is_said_in_a_sentence() -> None:
    assert len(BY_NAME) == len(FAULTS)
    assert all(fault.says.endswith(".") for fault in (*HONEST, *FAULTS))


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"chunked_prefill": True},
        {"cuda_graphs": True},
        {"threads": 2},
        {"tensor_parallel": 2},
        {"tensor_parallel": 3},
        {"prefix_caching": True},
    ],
    ids=str,
)
def test_the_honest_engine_is_bitwise_the_same_under_every_setting(
    items: list[ProbeItem], changed: dict[str, Any], experts: bool
) -> None:
    honest = started(experts=experts)
    other = started(dataclasses.replace(SPEC, **changed), experts=experts)
    cache = Cache.WARM if "prefix_caching" in changed else Cache.COLD
    for path in GIVEN:
        alone = honest.score(items, Path.PREFILL, Batching.ALONE)
        assert differing(alone, scored(other, items, path, cache)) == 0


def test_one_ulp_is_one_weight_s_neighbour() -> None:
    honest, faulty = (engine.program.model.lm_head.weight for engine in (started(), serving("one ulp in the head")))
    (place,) = (honest != faulty).nonzero().tolist()
    before, after = honest[tuple(place)].float(), faulty[tuple(place)].float()
    assert after.double() == faulty[tuple(place)]
    assert torch.nextafter(before, torch.tensor(torch.inf)) == after


def serving(name: str, **changed: Any) -> MemoryEngine:
    return BY_NAME[name].serving(dataclasses.replace(SPEC, **changed))


@pytest.mark.parametrize(
    ("name", "hidden", "shown"),
    [
        ("wrong KV scale", (Path.PREFILL, {}), (Path.DECODE_FORCED, {})),
        ("lost chunk boundary", (Path.PREFILL, {}), (Path.PREFILL, {"chunked_prefill": True})),
        ("thread-dependent sums", (Path.PREFILL, {}), (Path.PREFILL, {"threads": 2})),
        ("rounded all-reduce", (Path.PREFILL, {}), (Path.PREFILL, {"tensor_parallel": 2})),
        ("stale graph buffers", (Path.DECODE_FORCED, {}), (Path.DECODE_FORCED, {"cuda_graphs": True})),
        ("poisoned prefix cache", (Path.DECODE_FORCED, {}), (Path.DECODE_FORCED, {"prefix_caching": True})),
    ],
)
def test_a_fault_hides_where_its_program_does_not_run(
    items: list[ProbeItem], name: str, hidden: tuple[Path, dict[str, Any]], shown: tuple[Path, dict[str, Any]]
) -> None:
    honest = scored(started(), items, Path.PREFILL)
    differ = []
    for path, changed in (hidden, shown):
        cache = Cache.WARM if "prefix_caching" in changed else Cache.COLD
        differ.append(differing(honest, scored(serving(name, **changed), items, path, cache)))
    assert differ[0] == 0
    assert differ[1] > len(items) / 3


@pytest.mark.parametrize("name", ["temperature not applied", "truncated sampler", "hacked reward"])
def test_a_faulty_sampler_draws_other_tokens_and_reports_the_honest_logits(items: list[ProbeItem], name: str) -> None:
    honest, faulty = started(), serving(name)
    expected, drawn = (engine.sample(items, SAMPLING, Batching.BATCHED) for engine in (honest, faulty))
    assert sum(expected[item.id].tokens != drawn[item.id].tokens for item in items) > len(items) / 3
    answered = [dataclasses.replace(item, answer=drawn[item.id].tokens) for item in items]
    again = scored(honest, answered, Path.PREFILL)
    assert differing(again, {name: answer.logits for name, answer in drawn.items()}) == 0


def test_a_leak_grows_and_an_honest_engine_does_not(items: list[ProbeItem]) -> None:
    def peaks(engine: MemoryEngine) -> list[int]:
        return [engine.timed(items[:8], 8, Batching.BATCHED)[0].peak_bytes for _ in range(3)]

    assert len(set(peaks(started()))) == 1
    first, second, third = peaks(serving("leaking engine"))
    assert first < second < third


def test_the_contract_has_every_clause_on_every_path_and_can_be_met() -> None:
    contract = selftest_contract()
    groups = (Numerical, Statistical, Runtime)
    assert {clause.name for clause in contract.clauses} == {n for g in groups for n in g.model_fields} - {"at_most"}
    assert contract.paths == tuple(Path)
    require_attainable(contract)


def test_a_contract_is_held_at_the_level_it_has() -> None:
    document = selftest_contract().model_dump(mode="json", exclude_none=True)
    document["slices"].append({"name": "long", "where": "prompt_tokens > 9", "min_prompts": 120})
    document["search"] = {"columns": ["source"]}
    contract = KernelContract.model_validate(document)
    held = on_all_prompts(contract, 50)
    assert [part.min_prompts for part in held.slices] == [50]
    assert held.level == contract.level
    assert held.clauses == contract.clauses
    assert len(held.cells) < len(contract.cells)


def trial(fault: Fault, verdict: Verdict, estimate: str, clause: str = "tv_token") -> Trial:
    finding = Finding(
        clause=clause,
        slice="all",
        path="prefill",
        verdict=verdict,
        prompts=9,
        missing=0,
        estimate=estimate,
        lower="0",
        upper="1",
        limit="0.08",
        level="0.001",
        method="",
        reason="",
    )
    return Trial(fault, (finding,))


def test_what_no_fault_reaches_is_vacuous_and_what_too_few_prompts_leave_open_is_not() -> None:
    contract = selftest_contract()
    contract = contract.model_copy(update={"numerical": Numerical(), "runtime": Runtime()})
    statistical = contract.statistical.model_copy(
        update=dict.fromkeys(set(Statistical.model_fields) - {"tv_token", "greedy_flip_rate"})
    )
    contract = contract.model_copy(update={"statistical": statistical})
    open_still = trial(FAULTS[0], Verdict.UNDECIDED, "0.09")
    never = trial(FAULTS[0], Verdict.CERTIFIED, "0.08", "greedy_flip_rate")
    unmeasured = trial(FAULTS[1], Verdict.UNDECIDED, "NaN", "tv_token")
    both = Trial(FAULTS[0], open_still.findings + never.findings)
    found = SelfTest(contract, 9, (), (both, unmeasured))
    assert found.caught == {"tv_token": "0.09", "greedy_flip_rate": "0.08"}
    assert found.vacuous == ("greedy_flip_rate",)
    assert found.unrefuted == ("tv_token", "greedy_flip_rate")
    assert found.uncaught == (FAULTS[0].name, FAULTS[1].name)
    refuted = SelfTest(contract, 9, (), (trial(FAULTS[0], Verdict.REFUTED, "0.5"),))
    assert refuted.uncaught == ()
    assert refuted.unrefuted == ("greedy_flip_rate",)
