"""Weights: what is measured, what is refused, and how a difference is named."""

from __future__ import annotations

import json
import os
import pickle
import socket
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy
import pytest
from blake3 import blake3
from safetensors.numpy import save_file

from snapline.lineage.digest import BulkAlgorithm, file_hex
from snapline.lineage.errors import DefinitionError, IntegrityError, NotFoundError
from snapline.lineage.safetensors_layout import MAX_HEADER_BYTES
from snapline.lineage.weights import (
    check_weights,
    decode_manifest,
    differences,
    encode_manifest,
    measure_weights,
)

BLAKE3 = BulkAlgorithm.BLAKE3
TENSORS = {
    "model.layers.0.mlp.down_proj.weight": numpy.arange(12, dtype=numpy.float32).reshape(3, 4),
    "model.norm.weight": numpy.ones(5, dtype=numpy.float16),
    "empty": numpy.zeros((0, 4), dtype=numpy.int64),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "weights"
    (found / "tokenizer").mkdir(parents=True)
    save_file(TENSORS, found / "model.safetensors", metadata={"format": "pt"})
    (found / "config.json").write_text("{}")
    (found / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    return found


def raw(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_a_manifest_names_every_file_and_tensor(folder: Path) -> None:
    manifest = measure_weights(folder, BLAKE3)
    assert [file.path for file in manifest.files] == ["config.json", "model.safetensors", "tokenizer/vocab.txt"]
    model = manifest.files[1]
    assert model.hexdigest == file_hex(folder / "model.safetensors", BLAKE3)
    assert [tensor.name for tensor in model.tensors] == sorted(TENSORS)
    for tensor in model.tensors:
        expected = TENSORS[tensor.name]
        assert tensor.shape == expected.shape
        assert tensor.size_bytes == expected.nbytes
        assert tensor.hexdigest == blake3(expected.tobytes()).hexdigest()
    assert manifest.digest.startswith("blake3-weights-v1:")
    assert manifest.size_bytes == sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_the_other_hash_has_another_name(folder: Path) -> None:
    manifest = measure_weights(folder, BulkAlgorithm.SHA256)
    assert manifest.digest.startswith("sha256-weights-v1:")
    assert check_weights(manifest, folder, BulkAlgorithm.SHA256, cache=None, full=True) == ()


def test_a_manifest_survives_its_bytes(folder: Path) -> None:
    manifest = measure_weights(folder, BLAKE3)
    assert decode_manifest(encode_manifest(manifest)) == manifest
    with pytest.raises(IntegrityError, match="no manifest"):
        decode_manifest(b'{"files": 3}')


def test_a_manifest_that_lies_about_its_digest_is_refused(folder: Path) -> None:
    manifest = measure_weights(folder, BLAKE3)
    lie = manifest.model_copy(update={"digest": "blake3-weights-v1:" + "0" * 64})
    with pytest.raises(IntegrityError, match="digest of the weights manifest"):
        check_weights(lie, folder, BLAKE3, cache=None, full=True)


def test_an_empty_folder_inside_changes_nothing(folder: Path) -> None:
    before = measure_weights(folder, BLAKE3)
    (folder / "nothing" / "here").mkdir(parents=True)
    assert measure_weights(folder, BLAKE3) == before


def test_names_are_compared_as_written(folder: Path) -> None:
    before = measure_weights(folder, BLAKE3)
    composed, decomposed = "caf\u00e9.txt", "cafe\u0301.txt"
    (folder / composed).write_text("x")
    composed_digest = measure_weights(folder, BLAKE3).digest
    (folder / composed).rename(folder / decomposed)
    assert len({before.digest, composed_digest, measure_weights(folder, BLAKE3).digest}) == 3


def test_progress_counts_every_byte(folder: Path) -> None:
    told: list[tuple[str, int, int]] = []
    manifest = measure_weights(folder, BLAKE3, on_progress=lambda *report: told.append(report))
    assert told[-1] == ("hashing weights", manifest.size_bytes, manifest.size_bytes)
    assert [done for _, done, _ in told] == sorted(done for _, done, _ in told)


def test_a_missing_folder_and_a_file_are_told_apart(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="absent"):
        measure_weights(tmp_path / "absent", BLAKE3)
    with pytest.raises(DefinitionError, match="not a folder"):
        measure_weights(folder / "config.json", BLAKE3)
    manifest = measure_weights(folder, BLAKE3)
    with pytest.raises(NotFoundError, match="absent"):
        check_weights(manifest, tmp_path / "absent", BLAKE3, cache=None, full=False)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(DefinitionError, match="holds no weights"):
        measure_weights(folder, BLAKE3)


def test_a_detour_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DefinitionError, match=r"\.\."):
        measure_weights(folder / ".." / "weights", BLAKE3)
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(DefinitionError, match="symbolic link"):
        measure_weights(tmp_path / "link", BLAKE3)


@pytest.mark.parametrize("target", ["config.json", "tokenizer", "../elsewhere", "absent"])
def test_links_are_refused(folder: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "elsewhere").write_text("{}")
    manifest = measure_weights(folder, BLAKE3)
    (folder / "link.json").symlink_to(target)
    with pytest.raises(DefinitionError, match=r"link\.json is a symbolic link"):
        measure_weights(folder, BLAKE3)
    assert check_weights(manifest, folder, BLAKE3, cache=None, full=False) == (
        "link.json is a symbolic link",
        "file link.json is extra",
    )


def test_pipes_and_sockets_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(folder / "pipe")
    with pytest.raises(DefinitionError, match="pipe is a named pipe"):
        measure_weights(folder, BLAKE3)
    (folder / "pipe").unlink()
    monkeypatch.chdir(folder)  # a socket's path may not be long
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        with pytest.raises(DefinitionError, match="socket is a socket"):
            measure_weights(folder, BLAKE3)


def test_a_name_that_is_not_text_is_refused(folder: Path) -> None:
    with open(os.fsencode(folder) + b"/bad\xff", "wb"):  # noqa: PTH123 - the name is bytes
        pass
    with pytest.raises(DefinitionError, match=r"bad\\xff has a name that is not UTF-8"):
        measure_weights(folder, BLAKE3)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("name", ["model.weights", "notes.txt", "part.gguf"])
def test_a_disguised_pickle_is_refused(folder: Path, name: str, protocol: int) -> None:
    (folder / name).write_bytes(pickle.dumps({"a": 1}, protocol=protocol))
    with pytest.raises(DefinitionError, match=f"{name} is a pickle"):
        measure_weights(folder, BLAKE3)
    assert measure_weights(folder, BLAKE3, allow_pickle=True).files


@pytest.mark.parametrize("suffix", [".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".PT"])
def test_a_pickle_suffix_is_refused_whatever_is_in_it(folder: Path, suffix: str) -> None:
    (folder / f"model{suffix}").write_bytes(b"cposix\nsystem\n.")
    with pytest.raises(DefinitionError, match="is a pickle") as caught:
        measure_weights(folder, BLAKE3)
    assert "--allow-pickle" in caught.value.hint


def test_archives_and_object_arrays_are_refused(folder: Path) -> None:
    with zipfile.ZipFile(folder / "model.weights", "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02.")
    with pytest.raises(DefinitionError, match=r"model\.weights is a pickle"):
        measure_weights(folder, BLAKE3)
    (folder / "model.weights").unlink()
    numpy.save(folder / "plain.npy", numpy.ones(2))
    assert measure_weights(folder, BLAKE3).files
    numpy.save(folder / "objects.npy", numpy.array([{"a": 1}], dtype=object))
    with pytest.raises(DefinitionError, match=r"objects\.npy is a pickle"):
        measure_weights(folder, BLAKE3)


def test_an_allowed_pickle_is_weights_and_is_never_run(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "sprung",))

    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "model.pt").write_bytes(pickle.dumps(Trap()))
    assert measure_weights(tmp_path / "w", BLAKE3, allow_pickle=True).files[0].tensors == ()
    assert not (tmp_path / "sprung").exists()


def test_a_header_as_long_as_a_pickle_magic_is_no_pickle(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
    content = raw(header.ljust(0x0280), b"x")
    assert content.startswith(b"\x80\x02")
    (tmp_path / "model.safetensors").write_bytes(content)
    assert measure_weights(tmp_path, BLAKE3).files[0].tensors[0].name == "a"


def entry(dtype: object = "U8", shape: object = (4,), offsets: object = (0, 4)) -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "claims a header"),
        (b"\x08", "claims a header"),
        (struct.pack("<Q", MAX_HEADER_BYTES + 1) + b"{}", "claims a header"),
        (struct.pack("<Q", 2**63) + b"{}", "claims a header"),
        (raw(b"{"), "Expecting"),
        (raw(b"\xff\xfe"), "utf-8"),
        (raw(b"[" * 100_000), "recursion"),
        (raw([]), "not a JSON object"),
        (raw(b'{"a": 1, "a": 2}'), "twice"),
        (raw({"__metadata__": {"a": 1}}), "__metadata__"),
        (raw({"a": 3}, b"abcd"), "not exactly"),
        (raw({"a": {**entry(), "more": 1}}, b"abcd"), "not exactly"),
        (raw({"a": entry(dtype="U9")}, b"abcd"), "unknown dtype"),
        (raw({"a": entry(dtype=[])}, b"abcd"), "unknown dtype"),
        (raw({"a": entry(shape=(-4,))}, b"abcd"), "whole numbers"),
        (raw({"a": entry(shape=(True,), offsets=(0, 1))}, b"a"), "whole numbers"),
        (raw({"a": entry(shape=(4.0,))}, b"abcd"), "whole numbers"),
        (raw({"a": entry(offsets=(0, 4, 4))}, b"abcd"), "whole numbers"),
        (raw({"a": entry(offsets=(4, 0))}, b"abcd"), "takes 32 bits"),
        (raw({"a": entry(dtype="F16")}, b"abcd"), "takes 64 bits"),
        (raw({"a": entry(dtype="F4", shape=(3,), offsets=(0, 1))}, b"a"), "takes 12 bits"),
        (raw({"a": entry(offsets=(1, 5))}, b"abcde"), "begins at byte 1"),
        (raw({"a": entry(), "b": entry(offsets=(2, 6))}, b"abcdef"), "begins at byte 2"),
        (raw({"a": entry(), "b": entry(offsets=(5, 9))}, b"abcdefghi"), "begins at byte 5"),
        (raw({"a": entry()}, b"abc"), "take 4 bytes, but 3 follow"),
        (raw({"a": entry()}, b"abcde"), "take 4 bytes, but 5 follow"),
        (raw(b'{"\\ud800": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}', b"abcd"), "surrogates"),
    ],
)
def test_a_malformed_safetensors_file_is_refused_by_name(tmp_path: Path, content: bytes, complaint: str) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(DefinitionError, match=r"model\.safetensors is not a well-formed") as caught:
        measure_weights(tmp_path, BLAKE3)
    assert complaint in caught.value.message


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/hostname", "absent.safetensors", 3])
def test_an_index_may_only_name_files_of_the_folder(folder: Path, shard: object) -> None:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors"}}))
    assert measure_weights(folder, BLAKE3).files
    index.write_text(json.dumps({"weight_map": {"a": shard}}))
    with pytest.raises(DefinitionError, match="which is no file of the folder"):
        measure_weights(folder, BLAKE3)
    index.write_text("[]")
    with pytest.raises(DefinitionError, match="not an index of shards"):
        measure_weights(folder, BLAKE3)


def test_differences_name_tensors_and_files(folder: Path) -> None:
    then = measure_weights(folder, BLAKE3)
    assert differences(then, then) == ()
    changed = {**TENSORS, "model.norm.weight": numpy.ones((5, 1), dtype=numpy.float32), "new": numpy.ones(1)}
    del changed["empty"]
    changed["model.layers.0.mlp.down_proj.weight"] = TENSORS["model.layers.0.mlp.down_proj.weight"] + 1
    save_file(changed, folder / "model.safetensors")
    (folder / "config.json").unlink()
    (folder / "tokenizer" / "vocab.txt").write_text("c")
    (folder / "README.md").write_text("new")
    sentences = (
        "file config.json is missing",
        "file README.md is extra",
        "model.safetensors: tensor empty is missing",
        "model.safetensors: tensor new is extra",
        "model.safetensors: tensor model.layers.0.mlp.down_proj.weight changed",
        "model.safetensors: tensor model.norm.weight was F16 [5], is F32 [5, 1]",
        "tokenizer/vocab.txt: its bytes changed",
    )
    assert differences(then, measure_weights(folder, BLAKE3)) == sentences
    assert check_weights(then, folder, BLAKE3, cache=None, full=False) == sentences


def test_checking_imports_no_numerical_library() -> None:
    code = "import sys, snapline.lineage.weights; print({'numpy', 'torch', 'safetensors'} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "set()"
