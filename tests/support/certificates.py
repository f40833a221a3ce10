"""Certificates, findings and identities made to measure."""

from __future__ import annotations

from typing import Any

from snapline.contracts.certificate import PREDICATE_TYPE, Certificate
from snapline.contracts.targets import TargetIdentity
from snapline.contracts.verdict import Verdict
from snapline.lineage.cut import parse_instant
from snapline.lineage.events import Attested
from snapline.lineage.model import ModelVersion, VersionKey, Weights

AT = parse_instant("2026-11-30T12:00:00Z")
KEY = VersionKey(name="assistant", version=1)


def digest(what: str, digit: str = "a") -> str:
    algorithm = "blake3" if what in {"weights", "object", "rows", "probes"} else "sha256"
    return f"{algorithm}-{what}-v1:{digit * 64}"


MODEL = ModelVersion(
    key=KEY,
    weights=Weights(digest=digest("weights"), path="/models/assistant", manifest=digest("object", "9"), size_bytes=8),
    contract="tiny",
)
IDENTITY = TargetIdentity(
    engine="vllm",
    version="0.32.0",
    dtype="bfloat16",
    quantization="none",
    kv_cache_dtype="auto",
    device="cpu",
    device_name="A Processor",
    libraries={"torch": "2.13.0"},
)


def finding(verdict: Verdict = Verdict.CERTIFIED, **changes: Any) -> dict[str, Any]:
    return {
        "clause": "tv_token",
        "slice": "all",
        "path": "prefill",
        "verdict": verdict,
        "wanted_probes": "chats",
        "prompts": 60,
        "missing": 0,
        "estimate": "0.01",
        "lower": "0.005",
        "upper": "0.05",
        "limit": "0.1",
        "level": "0.00625",
        "method": "betting",
        "reason": f"it is {verdict}",
    } | changes


def engine(**changes: Any) -> dict[str, Any]:
    return {
        "engine": "vllm",
        "version": "0.32.0",
        "dtype": "bfloat16",
        "device": "cpu",
        "device_name": "A Processor",
        "vocabulary": 1000,
        "evidence_class": "cpu",
        "settings": {"eager": "true"},
        "libraries": {"torch": "2.13.0"},
    } | changes


def fields(verdict: Verdict = Verdict.CERTIFIED, **changes: Any) -> dict[str, Any]:
    """The fields of a certificate whose one finding says what it says."""
    return {
        "model": str(KEY),
        "weights": MODEL.weights.digest,
        "snapshots": [{"id": "b" * 64, "digest": digest("rows", "c")}],
        "view": digest("view", "d"),
        "contract": {"name": "tiny", "digest": digest("contract"), "object": digest("object", "1")},
        "probes": {"name": "chats", "digest": digest("probes"), "object": digest("object", "2")},
        "wanted_probes": "chats",
        "prompts": 60,
        "confidence": "0.95",
        "target": "production",
        "target_identity": IDENTITY.model_dump(),
        "reference": engine(engine="transformers", version="5.19.0", dtype="float32"),
        "serving": engine(),
        "evidence": digest("object", "3"),
        "evidence_class": "cpu",
        "noise_floor": {"half_span": "0.00002"},
        "verdict": verdict,
        "findings": [finding(verdict)],
        "issued_at": AT,
    } | changes


def certificate(verdict: Verdict = Verdict.CERTIFIED, **changes: Any) -> Certificate:
    return Certificate.model_validate(fields(verdict, **changes))


def attested(number: int = 0, **changes: Any) -> Attested:
    """The attestation of the certificate whose envelope has that number."""
    return Attested(
        at=AT, model=KEY, predicate_type=PREDICATE_TYPE, envelope=f"blake3-object-v1:{number:064x}"
    ).model_copy(update=changes)
