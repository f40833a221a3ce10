from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from snapline.lineage.digest import (
    CHUNK_BYTES,
    BulkAlgorithm,
    Digest,
    bytes_hex,
    canonical_json,
    document_digest,
    file_hex,
    hex_part,
    merkle_root,
    named,
    require_equal,
    short,
)
from snapline.lineage.errors import DefinitionError, IntegrityError

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=10,
)


@pytest.mark.parametrize(
    ("algorithm", "reference"), [(BulkAlgorithm.BLAKE3, blake3), (BulkAlgorithm.SHA256, hashlib.sha256)]
)
def test_a_files_digest_is_that_of_its_bytes(tmp_path: Path, algorithm: BulkAlgorithm, reference: type) -> None:
    data = bytes(range(256)) * (CHUNK_BYTES // 256) + b"and a bit more than one chunk"
    (tmp_path / "file").write_bytes(data)
    assert file_hex(tmp_path / "file", algorithm) == bytes_hex(data, algorithm) == reference(data).hexdigest()


def test_a_digest_names_what_was_hashed_and_how() -> None:
    digest = document_digest("view", {"b": 1, "a": ["x"]})
    assert digest == "sha256-view-v1:" + hashlib.sha256(b'{"a":["x"],"b":1}').hexdigest()
    assert hex_part(digest) == digest[-64:]
    assert short(digest) == digest[-64:][:12]
    assert document_digest("contract", {"b": 1, "a": ["x"]}) != digest
    assert named(BulkAlgorithm.BLAKE3, "rows-v2", "0" * 64) == "blake3-rows-v2:" + "0" * 64


@pytest.mark.parametrize(
    "text",
    ["", "a" * 64, "md5-rows-v2:" + "a" * 64, "blake3-rows-v2:" + "A" * 64, "blake3-rows-v2:" + "a" * 63, "blake3-v1"],
)
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Digest).validate_python(text)


@given(value=JSON)
def test_canonical_json_is_one_spelling_whatever_the_order(value: object) -> None:
    def reversed_keys(value: object) -> object:
        if isinstance(value, dict):
            return {key: reversed_keys(value[key]) for key in reversed(value)}
        return [reversed_keys(item) for item in value] if isinstance(value, list) else value

    assert canonical_json(value) == canonical_json(reversed_keys(value))


@pytest.mark.parametrize(
    "value",
    [1.0, float("nan"), {"a": [{"b": 0.5}]}, (1.5,), 2**53, {1: "x"}, {"\ud800": 1}, "\ud800", b"bytes", object()],
)
def test_what_does_not_hash_portably_is_refused(value: object) -> None:
    with pytest.raises(DefinitionError):
        canonical_json(value)


# Merkle Tree Hashes over the eight inputs of Certificate Transparency's own test suite (RFC 6962, section 2.1).
CT_LEAVES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
CT_ROOTS = {
    0: "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    1: "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    2: "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    3: "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    4: "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    5: "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    6: "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    7: "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    8: "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
}


@pytest.mark.parametrize("count", CT_ROOTS)
def test_the_merkle_root_is_that_of_rfc_6962(count: int) -> None:
    assert merkle_root(CT_LEAVES[:count], BulkAlgorithm.SHA256) == CT_ROOTS[count]


@given(
    left=st.lists(st.binary(max_size=70), max_size=6),
    right=st.lists(st.binary(max_size=70), max_size=6),
    algorithm=st.sampled_from(BulkAlgorithm),
)
def test_different_leaves_have_different_roots(left: list[bytes], right: list[bytes], algorithm: BulkAlgorithm) -> None:
    assert (merkle_root(left, algorithm) == merkle_root(right, algorithm)) == (left == right)


def test_a_node_cannot_pose_as_a_leaf() -> None:
    hashed = [hashlib.sha256(b"\x00" + leaf).digest() for leaf in (b"a", b"b")]
    assert merkle_root([b"a", b"b"], BulkAlgorithm.SHA256) != merkle_root([b"".join(hashed)], BulkAlgorithm.SHA256)


def test_unequal_digests_are_both_in_the_message() -> None:
    require_equal("weights", "x:1", "x:1")
    with pytest.raises(IntegrityError, match="weights: expected x:1, found x:2"):
        require_equal("weights", "x:1", "x:2")
