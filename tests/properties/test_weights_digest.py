"""Laws of the weights digest: equal exactly when names, shapes, dtypes and bytes are."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from snapline.lineage.digest import BulkAlgorithm
from snapline.lineage.errors import DefinitionError
from snapline.lineage.weights import (
    WeightsManifest,
    check_weights,
    decode_manifest,
    differences,
    encode_manifest,
    measure_weights,
)

algorithms = st.sampled_from(list(BulkAlgorithm))
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
dtypes = st.sampled_from(["float32", "float16", "int8", "uint8", "int64", "bool"])
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@st.composite
def arrays(draw: st.DrawFn) -> numpy.ndarray:
    dtype, shape = numpy.dtype(draw(dtypes)), draw(shapes)
    size = int(numpy.prod(shape)) * dtype.itemsize
    data = draw(st.binary(min_size=size, max_size=size))
    if dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    return numpy.frombuffer(data, dtype).reshape(shape)


checkpoints = st.dictionaries(names, arrays(), min_size=1, max_size=5)


def written(tensors: dict[str, numpy.ndarray], root: str, name: str = "weights") -> Path:
    folder = Path(root) / name
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def measured(folder: Path, algorithm: BulkAlgorithm) -> tuple[WeightsManifest | None, str]:
    """Return the manifest and no complaint, or no manifest and what was complained of."""
    try:
        return measure_weights(folder, algorithm), ""
    except DefinitionError as error:
        return None, error.message


@given(checkpoints, algorithms)
@settings(max_examples=60, deadline=None)
def test_the_place_does_not_matter_and_nothing_differs_from_itself(
    tensors: dict[str, numpy.ndarray], algorithm: BulkAlgorithm
) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = written(tensors, root)
        manifest = measure_weights(folder, algorithm)
        copy = Path(shutil.copytree(folder, Path(root) / "deep" / "er"))
        assert measure_weights(copy, algorithm) == manifest
        assert check_weights(manifest, copy, algorithm, cache=None, full=True) == ()
        assert differences(manifest, manifest) == ()
        assert decode_manifest(encode_manifest(manifest)) == manifest


@given(checkpoints, algorithms, st.data())
@settings(max_examples=80, deadline=None)
def test_any_flipped_bit_changes_the_digest_or_is_refused(
    tensors: dict[str, numpy.ndarray], algorithm: BulkAlgorithm, data: st.DataObject
) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = written(tensors, root)
        manifest = measure_weights(folder, algorithm)
        path = folder / data.draw(st.sampled_from(["model.safetensors", "config.json"]))
        content = bytearray(path.read_bytes())
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(content)
        sentences = check_weights(manifest, folder, algorithm, cache=None, full=False)
        assert len(sentences) >= 1
        assert all(sentence.startswith(path.name) for sentence in sentences)
        found, complaint = measured(folder, algorithm)
        assert path.name in complaint if found is None else found.digest != manifest.digest


@given(checkpoints, checkpoints, algorithms)
@settings(max_examples=60, deadline=None)
def test_digests_are_equal_exactly_when_no_difference_is_named(
    one: dict[str, numpy.ndarray], other: dict[str, numpy.ndarray], algorithm: BulkAlgorithm
) -> None:
    with tempfile.TemporaryDirectory() as root:
        first = measure_weights(written(one, root, "a"), algorithm)
        second = measure_weights(written(other, root, "b"), algorithm)
        assert (first.digest == second.digest) == (differences(first, second) == ())
        assert (first.digest == second.digest) == (first == second)


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_no_header_crashes_the_reader(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "model.safetensors"
        for candidate in (content, len(content).to_bytes(8, "little") + content):
            path.write_bytes(candidate)
            found, complaint = measured(path.parent, BulkAlgorithm.BLAKE3)
            assert str(path) in complaint if found is None else found.size_bytes == len(candidate)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
entries = st.fixed_dictionaries({"dtype": json_values, "shape": json_values, "data_offsets": json_values})


@given(st.dictionaries(names, entries | json_values, max_size=3), st.binary(max_size=8))
@settings(max_examples=200, deadline=None)
def test_no_json_crashes_the_reader(header: dict[str, object], data: bytes) -> None:
    text = json.dumps(header).encode()
    with tempfile.TemporaryDirectory() as root:
        path = Path(root) / "model.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        found, complaint = measured(path.parent, BulkAlgorithm.BLAKE3)
        if found is None:
            assert str(path) in complaint
        else:
            assert sum(tensor.size_bytes for tensor in found.files[0].tensors) == len(data)
