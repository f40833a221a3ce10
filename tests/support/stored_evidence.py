"""Evidence as certify stores it, made without an engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from snapline.contracts.contract import KernelContract
from snapline.contracts.engines.protocol import Path
from snapline.contracts.evidence import MEASURES, SCHEMA, TOKENS, evidence_from_parquet, evidence_to_parquet
from snapline.contracts.figures import decimal_text
from snapline.contracts.probe import check_probes, probes_digest
from snapline.contracts.procedure import procedure_of
from snapline.contracts.provenance import Provenance
from snapline.lineage.digest import BulkAlgorithm

ANSWER = 3
WEIGHTS = f"blake3-weights-v1:{'a' * 64}"
REFERENCE, SERVING, OTHER = (f"sha256-target-v1:{digit * 64}" for digit in "123")
Said = Mapping[str, Mapping[str, Any]]


def chat_probes(count: int = 60, answer: str = "b") -> pa.Table:
    rows = [
        {"id": f"p{n:03}", "text": f"a{n}", "answer": answer, "language": "en" if n % 2 else "fr"} for n in range(count)
    ]
    return check_probes(pa.Table.from_pylist(rows))


def rows_of(ids: Sequence[str], pair: str, path: str, said: Said | None = None) -> pa.Table:
    """Rows without a fault, but for what `said` says of a prompt: a figure for all its positions."""
    rows = []
    for prompt in ids:
        for position in range(ANSWER):
            row: dict[str, Any] = {"prompt": prompt, "path": path, "pair": pair, "position": position, "token": 7}
            row |= dict.fromkeys(MEASURES, 0.0) | dict.fromkeys(TOKENS, 7)
            row |= {"margin": 1.0, "flip": False, "identical": True} | dict((said or {}).get(prompt, {}))
            rows.append(row)
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def provenance(contract: KernelContract, probes: pa.Table, /, **changes: Any) -> Provenance:
    """What evidence measured under a contract says of itself."""
    procedure = procedure_of(contract, probes.num_rows)
    ids = probes["id"].to_pylist()
    return Provenance(
        weights=WEIGHTS,
        probes=probes_digest(probes, BulkAlgorithm.BLAKE3),
        reference=REFERENCE,
        serving=SERVING,
        temperature=decimal_text(contract.temperature),
        comparisons={one.key: one.prompts for one in procedure.comparisons},
        timings={batching.value: runs for batching, runs in procedure.timings},
        horizon=procedure.horizon if Path.DECODE_SAMPLED in contract.paths else 0,
        lengths=dict.fromkeys(ids, (2, ANSWER)),
        sampled=dict.fromkeys(ids, ANSWER) if Path.DECODE_SAMPLED in contract.paths else {},
    ).model_copy(update=changes)


def stored(
    contract: KernelContract, probes: pa.Table, said: Mapping[str, Said] | None = None, /, **changes: Any
) -> bytes:
    """Bytes of faultless evidence of all a contract asks for, timings left out.

    Args:
        said: By pair, what prompts say of their rows.
        changes: Fields of the provenance that are something else.
    """
    found = provenance(contract, probes, **changes)
    ids = probes["id"].to_pylist()
    tables = [rows_of(ids[:4], "noise-floor", "prefill", {ids[0]: {"half_span": 1e-5, "tv": 2e-6}})]
    for key, prompts in found.comparisons.items():
        pair, path, *_ = key.split(" ")
        tables.append(rows_of(ids[:prompts], pair, path, (said or {}).get(pair)))
    return evidence_to_parquet(pa.concat_tables(tables), {"provenance": found.model_dump_json()})


def stored_table(*arguments: Any, **changes: Any) -> pa.Table:
    """The same as a table."""
    return evidence_from_parquet(stored(*arguments, **changes))
