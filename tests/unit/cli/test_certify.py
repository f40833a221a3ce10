"""What a person is told of a certificate."""

from __future__ import annotations

from certificates import certificate, finding

from snapline.cli.certify import document, text
from snapline.contracts.certify import Issued
from snapline.contracts.verdict import Verdict

WITNESS = {
    "prompt": "p7",
    "path": "prefill",
    "position": 4,
    "tokens": (50, 61),
    "figures": {"half_span": "Infinity", "tv": "0.00000001234", "margin": "123456789.25", "flip": "true"},
}
REFUTED = certificate(Verdict.REFUTED, findings=[finding(Verdict.REFUTED, witness=WITNESS)])


def test_a_witness_is_told_with_its_figures_neither_cut_short_nor_in_full():
    told = text(Issued(REFUTED, "blake3-object-v1:ab", True))
    assert "REFUTED  assistant/1 for production under contract tiny" in told
    assert "prompt p7, position 4, half_span Infinity, tv 1.234e-8, margin 1.235e+8, flip true" in told
    assert "tokens up to there: 50 61" in told
    assert "measured now; certificate blake3-object-v1:ab" in told


def test_the_document_has_the_promised_keys():
    found = document(Issued(REFUTED, "blake3-object-v1:ab", False))
    assert (found["verdict"], found["certificate"], found["measured"]) == ("REFUTED", "blake3-object-v1:ab", False)
    assert found["findings"][0]["witness"]["figures"]["margin"] == "123456789.25"
