"""Certificates, findings and evidence as tables that SQL can ask, beside those of `lineage.catalogue`.

A figure is a number here; the signed text of it is in the certificate. Every certificate is verified as it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow as pa

from snapline.contracts.certificate import PREDICATE_TYPE, Certificate
from snapline.contracts.evidence import evidence_from_parquet
from snapline.lineage.catalogue import Row, schema_of
from snapline.lineage.events import Attested
from snapline.lineage.objects import ObjectStore
from snapline.lineage.state import State

Pair = tuple[Attested, Certificate]
_TEXT, _COUNT, _SMALL, _NUMBER, _FLAG = "VARCHAR", "BIGINT", "INTEGER", "DOUBLE", "BOOLEAN"

CERTIFICATES = schema_of(
    "certificates",
    "a certificate: a verdict over a model version at a target",
    ("envelope", _TEXT, "address of the signed statement; its identity"),
    ("version", _TEXT, "versions.id"),
    ("target", _TEXT, "name of the deployment target"),
    ("target_digest", _TEXT, "identity of what was installed there"),
    ("contract", _TEXT, "name of the contract"),
    ("contract_digest", _TEXT, "identity of the contract"),
    ("probes", _TEXT, "name of the probe set measured on"),
    ("probes_digest", _TEXT, "identity of the probe set"),
    ("prompts", _COUNT, "prompts measured"),
    ("verdict", _TEXT, "CERTIFIED, UNDECIDED or REFUTED"),
    ("confidence", _NUMBER, "family-wise confidence"),
    ("reference", _TEXT, "engine, version and dtype of the reference"),
    ("serving", _TEXT, "engine, version and dtype of the serving side"),
    ("evidence", _TEXT, "address of the per-position evidence"),
    ("evidence_class", _TEXT, "the weaker of the two sides' classes"),
    ("issued_at", "TIMESTAMP WITH TIME ZONE", "when it was judged"),
    ("seconds", _COUNT, "what issuing it cost"),
)
FINDINGS = schema_of(
    "findings",
    "one clause of a certificate on one slice and path",
    ("envelope", _TEXT, "certificates.envelope"),
    ("version", _TEXT, "versions.id"),
    ("target", _TEXT, "name of the deployment target"),
    ("clause", _TEXT, "the promise"),
    ("slice", _TEXT, "the prompts it was judged on"),
    ("path", _TEXT, "prefill, decode-forced, ..."),
    ("verdict", _TEXT, "CERTIFIED, UNDECIDED or REFUTED"),
    ("prompts", _COUNT, "prompts measured"),
    ("missing", _COUNT, "prompts without a usable measurement"),
    ("estimate", _NUMBER, "the estimate, in the clause's unit"),
    ("lower_limit", _NUMBER, "lower confidence limit"),
    ("upper_limit", _NUMBER, "upper confidence limit"),
    ("allowed", _NUMBER, "the most the contract allows"),
    ("level", _NUMBER, "error probability given to each side"),
    ("method", _TEXT, "the estimator"),
    ("reason", _TEXT, "why, in one sentence"),
)
EVIDENCE = schema_of(
    "evidence",
    "one measured position behind a certificate",
    ("envelope", _TEXT, "certificates.envelope"),
    ("version", _TEXT, "versions.id"),
    ("target", _TEXT, "name of the deployment target"),
    ("prompt", _TEXT, "id of the probe"),
    ("path", _TEXT, "prefill, decode-forced, ..."),
    ("pair", _TEXT, "serving, batching, order, ..., noise-floor"),
    ("position", _SMALL, "place in the answer"),
    ("token", _SMALL, "the scored token"),
    ("half_span", _NUMBER, "half the span of the log-ratio"),
    ("tv", _NUMBER, "total variation"),
    ("kl_reference_serving", _NUMBER, "divergence of serving from reference"),
    ("kl_serving_reference", _NUMBER, "divergence of reference from serving"),
    ("margin", _NUMBER, "the reference's lead of its first token over its second"),
    ("entropy", _NUMBER, "entropy of the reference"),
    ("logp_reference", _NUMBER, "log probability of the token, reference"),
    ("logp_serving", _NUMBER, "log probability of the token, serving"),
    ("top_reference", _NUMBER, "log probability of the first token, reference"),
    ("top_serving", _NUMBER, "log probability of the first token, serving"),
    ("greedy_reference", _SMALL, "the first token, reference"),
    ("greedy_serving", _SMALL, "the first token, serving"),
    ("flip", _FLAG, "whether the first token differs"),
    ("identical", _FLAG, "whether both rows of logits are bit for bit the same"),
)
SCHEMA = (CERTIFICATES, FINDINGS, EVIDENCE)


def certificates_of(state: State, read: Callable[[Attested], Certificate]) -> list[Pair]:
    """Return every certificate the ledger holds, by version, oldest first.

    Raises:
        IntegrityError: One of them, or an object it binds, does not hold.
    """
    return [
        (attested, read(attested))
        for _, found in sorted(state.attestations.items(), key=lambda item: (item[0].name, item[0].version))
        for attested in found
        if attested.predicate_type == PREDICATE_TYPE
    ]


def tables(pairs: Callable[[], Sequence[Pair]], objects: ObjectStore) -> Mapping[str, Callable[[], pa.Table]]:
    """Return how to make each table of `SCHEMA`, by name; `pairs` is asked only when one is made."""
    return {
        "certificates": lambda: CERTIFICATES.table(map(_certificate, pairs())),
        "findings": lambda: FINDINGS.table(row for pair in pairs() for row in _findings(pair)),
        "evidence": lambda: _evidence(pairs(), objects),
    }


def _certificate(pair: Pair) -> Row:
    attested, certificate = pair
    sides = {
        side: f"{engine.engine} {engine.version} {engine.dtype}"
        for side, engine in (("reference", certificate.reference), ("serving", certificate.serving))
    }
    return sides | {
        "envelope": attested.envelope,
        "version": certificate.model,
        "target": certificate.target,
        "target_digest": certificate.target_identity.digest,
        "contract": certificate.contract.name,
        "contract_digest": certificate.contract.digest,
        "probes": certificate.probes.name,
        "probes_digest": certificate.probes.digest,
        "prompts": certificate.prompts,
        "verdict": certificate.verdict.value,
        "confidence": _figure(certificate.confidence),
        "evidence": certificate.evidence,
        "evidence_class": certificate.evidence_class,
        "issued_at": certificate.issued_at,
        "seconds": attested.seconds,
    }


def _findings(pair: Pair) -> Iterable[Row]:
    attested, certificate = pair
    for found in certificate.findings:
        yield {
            "envelope": attested.envelope,
            "version": certificate.model,
            "target": certificate.target,
            "clause": found.clause,
            "slice": found.slice,
            "path": found.path,
            "verdict": found.verdict.value,
            "prompts": found.prompts,
            "missing": found.missing,
            "estimate": _figure(found.estimate),
            "lower_limit": _figure(found.lower),
            "upper_limit": _figure(found.upper),
            "allowed": _figure(found.limit),
            "level": _figure(found.level),
            "method": found.method,
            "reason": found.reason,
        }


def _figure(text: str) -> float | None:
    """Return a decimal string as a number; None where nothing was measured."""
    try:
        return float(text)
    except ValueError:
        return None


def _evidence(pairs: Sequence[Pair], objects: ObjectStore) -> pa.Table:
    parts = [EVIDENCE.arrow.empty_table()]
    for attested, certificate in pairs:
        measured = evidence_from_parquet(objects.read(certificate.evidence))
        named = (("envelope", attested.envelope), ("version", certificate.model), ("target", certificate.target))
        columns = {name: pa.repeat(pa.scalar(text), measured.num_rows) for name, text in named}
        columns |= {name: measured[name] for name in measured.column_names}
        parts.append(pa.table(columns).select(EVIDENCE.arrow.names).cast(EVIDENCE.arrow))
    return pa.concat_tables(parts)
