from __future__ import annotations

from datetime import timedelta

import pytest
import torch
from certificates import AT
from safetensors.torch import load_file

from snapline.contracts.logits import MANIFEST, LogitsKeeper, LogitsManifest, expire, kept
from snapline.lineage.errors import DefinitionError

WEEK = timedelta(days=7)


def test_logits_are_kept_bit_by_bit_in_their_own_type(tmp_path):
    keeper = LogitsKeeper(tmp_path / "run", AT + WEEK)
    batch = torch.randn(2, 3, 11, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    batch[0, 0, 0] = -torch.inf
    for prompt, rows in zip(("p/1", "ü"), batch, strict=True):
        keeper.keep(prompt, "serving", "prefill", rows)
        keeper.keep(prompt, "reference", "prefill", rows.float().T.contiguous().T)
    manifest = keeper.close("blake3-object-v1:" + "0" * 64)
    assert manifest.evidence == "blake3-object-v1:" + "0" * 64
    assert set(manifest.files) == {f"{side}/prefill/{p}" for side in ("serving", "reference") for p in ("p/1", "ü")}
    for prompt, rows in zip(("p/1", "ü"), batch, strict=True):
        found = load_file(tmp_path / "run" / manifest.files[f"serving/prefill/{prompt}"])[f"serving/prefill/{prompt}"]
        assert (found.dtype, found.equal(rows)) == (torch.bfloat16, True)
        other = f"reference/prefill/{prompt}"
        assert load_file(tmp_path / "run" / manifest.files[other])[other].equal(rows.float())


def test_a_file_is_written_whenever_a_chunk_is_full(tmp_path):
    keeper = LogitsKeeper(tmp_path / "run", AT, chunk=2 * 4 * 10)
    for number in range(5):
        keeper.keep(f"p{number}", "serving", "prefill", torch.full((1, 10), float(number)))
    written = LogitsManifest.model_validate_json((tmp_path / "run" / MANIFEST).read_bytes())
    assert written.files == {f"serving/prefill/p{n}": f"{n // 2}.safetensors" for n in range(4)}
    files = keeper.close().files
    assert files["serving/prefill/p4"] == "2.safetensors"
    assert len(list((tmp_path / "run").glob("*.safetensors"))) == 3


def test_what_is_kept_does_not_change_with_the_batch_it_came_from(tmp_path):
    keeper = LogitsKeeper(tmp_path / "run", AT)
    row = torch.zeros(1, 4)
    keeper.keep("p", "serving", "prefill", row)
    row += 1
    file = keeper.close().files["serving/prefill/p"]
    assert load_file(tmp_path / "run" / file)["serving/prefill/p"].sum() == 0


def test_the_same_logits_twice_and_a_folder_that_is_there_are_refused(tmp_path):
    keeper = LogitsKeeper(tmp_path / "run", AT, chunk=1)
    keeper.keep("p", "serving", "prefill", torch.zeros(1, 4))
    with pytest.raises(DefinitionError, match="serving/prefill/p"):
        keeper.keep("p", "serving", "prefill", torch.zeros(1, 4))
    with pytest.raises(DefinitionError, match="cannot make"):
        LogitsKeeper(tmp_path / "run", AT)


def test_folders_are_removed_once_their_time_is_over_and_not_before(tmp_path):
    for name, days in (("later", 9), ("soon", 1), ("interrupted", 2)):
        keeper = LogitsKeeper(tmp_path / name, AT + timedelta(days=days))
        keeper.keep("p", "serving", "prefill", torch.zeros(1, 4))
        if name != "interrupted":
            keeper.close()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / MANIFEST).write_text("{}")
    assert [one.folder.name for one in kept(tmp_path)] == ["soon", "interrupted", "later"]
    assert kept(tmp_path)[0].size_bytes > 16
    assert expire(tmp_path, AT) == []
    assert [one.folder.name for one in expire(tmp_path, AT + timedelta(days=2))] == ["soon", "interrupted"]
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["later", "mine"]


def test_a_home_without_logits_has_none_to_remove(tmp_path):
    assert expire(tmp_path / "logits", AT) == []


def test_what_is_discarded_leaves_nothing(tmp_path):
    keeper = LogitsKeeper(tmp_path / "one", AT)
    keeper.discard()
    assert kept(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
