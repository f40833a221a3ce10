"""Contracts and evidence made to measure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from snapline.contracts.contract import KernelContract
from snapline.contracts.evidence import MEASURES, SCHEMA, TOKENS
from snapline.lineage.documents import parse

CONTRACT = """\
apiVersion: snapline/v1
kind: KernelContract
name: chat-bf16
probes: chats
reference: {engine: transformers, dtype: float32}
serving: {engine: vllm, version: ">=0.30,<0.34", dtype: bfloat16}
confidence: "0.95"
paths: [prefill]
slices:
  - {name: all, min_prompts: 100}
numerical: {half_span: {quantile: "0.90", limit: "2.0"}}
statistical: {tv_token: "0.10", greedy_flip_rate: "0.25"}
runtime: {batch_invariance: bitwise}
"""

Row = dict[str, Any]


@pytest.fixture(scope="session")
def contract_text() -> str:
    return CONTRACT


@pytest.fixture(scope="session")
def contract() -> Callable[..., KernelContract]:
    """Return a contract with some text replaced; by default every clause of the language on one slice and path."""

    def make(*replacements: tuple[str, str]) -> KernelContract:
        text = CONTRACT
        for old, new in replacements:
            assert old in text
            text = text.replace(old, new)
        return parse(text, KernelContract, name="contract.yaml")

    return make


@pytest.fixture(scope="session")
def only(contract: Callable[..., KernelContract]) -> Callable[[str], KernelContract]:
    """Return a contract with one clause group, written as a line of YAML."""
    first = CONTRACT.index("numerical:")

    def make(line: str) -> KernelContract:
        return contract((CONTRACT[first:], line + "\n"))

    return make


@pytest.fixture(scope="session")
def evidence() -> Callable[..., pa.Table]:
    """Return evidence in which every row is faultless but for what a prompt says of itself.

    Each prompt is a mapping of column to value for all its rows, or to a list with one value per row.
    """

    def make(prompts: dict[str, Row], *, pair: str = "serving", path: str = "prefill", length: int = 3) -> pa.Table:
        rows = []
        for prompt, said in prompts.items():
            for position in range(length):
                row: Row = {"prompt": prompt, "path": path, "pair": pair, "position": position, "token": 7 + position}
                row |= dict.fromkeys(MEASURES, 0.0) | dict.fromkeys(TOKENS, 7 + position)
                row |= {"margin": 1.0, "flip": False, "identical": True}
                row |= {name: value[position] if isinstance(value, list) else value for name, value in said.items()}
                rows.append(row)
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    return make


@pytest.fixture(scope="session")
def prompts() -> Callable[..., pa.Table]:
    """Return the prompts a judge is given: ids with the lengths of their answers, and any other columns."""

    def make(lengths: dict[str, int], **columns: list[Any]) -> pa.Table:
        tokens = list(lengths.values())
        known = {"id": pa.array(list(lengths), pa.string()), "prompt_tokens": pa.array([5] * len(tokens), pa.int64())}
        known |= {name: pa.array(tokens, pa.int64()) for name in ("answer_tokens", "sampled_tokens")}
        return pa.table(known | columns)

    return make
