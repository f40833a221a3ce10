"""The whole story on real parts: a real model, real flights, a real serving engine, one gate.

Everything it makes lies under `.demo` in the current folder. It runs the same commands a person would type, shows them,
and stops if one does not end as the story says.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from capital import show_the_near_tie
from make_faulty import install as install_faulty_engine
from rich.console import Console

HERE = Path(__file__).parent
PLACE = Path(".demo").absolute()
HOME = PLACE / ".snapline"
FLIGHTS = PLACE / "data" / "flights.parquet"
BASE = PLACE / "smollm2-135m-instruct"
MODEL = "delay-assistant"
SNAPLINE = str(Path(sys.executable).with_name("snapline"))
GOOD_TARGET = (HERE / "targets.yaml").read_text()

console = Console(highlight=False, width=None if sys.stdout.isatty() else 100)


def main() -> None:
    started = time.monotonic()
    PLACE.mkdir(exist_ok=True)
    shutil.rmtree(HOME, ignore_errors=True)
    prepare()
    console.rule("Same weights, same tokens, two programs")
    show_the_near_tie(BASE, PLACE / "work", console)
    materialize()
    certify_and_ship()
    late_rows()
    flipped_byte()
    another_dtype()
    known_bad_engine()
    everything_back()
    erasure()
    console.rule("Which segments are worth refreshing, under a budget?")
    run("refresh", "plan", HERE / "refresh.yaml")
    console.rule("Where to look")
    run("status")
    run("lineage", MODEL)
    run("impact", "flights")
    run("query", "SELECT id, view, aliases FROM versions ORDER BY id")
    console.print(f"\nThe same facts in the MLflow UI:  snapline server --home {os.path.relpath(HOME)}")
    console.print(f"Done in {(time.monotonic() - started) / 60:.1f} minutes.")


def prepare() -> None:
    console.rule("Real parts")
    subprocess.run([sys.executable, HERE / "prepare.py", PLACE], check=True)


def materialize() -> None:
    console.rule("A model is a materialized view over a time-bounded snapshot")
    run("init")
    (HOME / "targets.yaml").write_text(GOOD_TARGET)
    run("register", BASE.name, "--weights", BASE)
    take = ["snapshot", "take", "flights", "--source", FLIGHTS, "--time", "dep_time", "--known", "arr_known"]
    run(*take, "--key", "flight_id", "--from", "2013-01-01", "--until", "2013-07-01", "--bucket", "day")
    run("view", "define", HERE / f"{MODEL}.yaml")
    run("probes", "add", "chats", "--from", PLACE / "chats.jsonl")
    run("materialize", MODEL, "--until", "2013-07-01", "--contract", HERE / "contracts" / "chat-bf16.yaml")


def certify_and_ship() -> None:
    console.rule("Does the program that serves it still compute what we evaluated?")
    run("gate", MODEL, expect=3)
    run("certify", MODEL, "--for", "production")
    console.print("\nA tighter contract, judged on the same evidence, is one that bf16 cannot keep:")
    run("certify", MODEL, "--for", "production", "--contract", HERE / "contracts" / "chat-fp32.yaml", expect=1)
    run("verify", MODEL)
    run("gate", MODEL, "--for", "production")
    run("promote", MODEL, "--to", "champion")


def late_rows() -> None:
    console.rule("(a) Late rows and a correction inside the cut")
    kept = FLIGHTS.with_suffix(".kept")
    shutil.copy2(FLIGHTS, kept)
    flights = pq.read_table(FLIGHTS)
    rows = flights.slice(1000, 3).to_pylist()
    late = [row | {"flight_id": 900_001 + n, "arr_known": datetime.now(UTC)} for n, row in enumerate(rows)]
    delays = flights["dep_delay"].to_pylist()
    delays[20_000] = 777
    corrected = flights.set_column(
        flights.column_names.index("dep_delay"), "dep_delay", pa.array(delays, flights["dep_delay"].type)
    )
    pq.write_table(pa.concat_tables([corrected, pa.Table.from_pylist(late, schema=flights.schema)]), FLIGHTS)
    run("gate", MODEL, expect=1)
    run("snapshot", "diff", "flights", "now", expect=1)
    run("plan", MODEL)
    console.print("\nThe rows are put back:")
    kept.replace(FLIGHTS)
    run("gate", MODEL)


def flipped_byte() -> None:
    console.rule("(b) One flipped byte in the weights")
    flip()
    run("gate", MODEL, expect=5)
    flip()
    console.print("\nThe byte is put back:")
    run("gate", MODEL)


def flip() -> None:
    """Flip one bit near the end of the served weights, in place."""
    decision = json.loads(subprocess.run([*command("gate", MODEL), "--json"], capture_output=True, check=False).stdout)
    path = Path(decision["weights"]) / "model.safetensors"
    with path.open("r+b") as stream:
        stream.seek(-1000, 2)
        byte = stream.read(1)[0]
        stream.seek(-1000, 2)
        stream.write(bytes([byte ^ 1]))


def another_dtype() -> None:
    console.rule("(c) The target serves another dtype")
    (HOME / "targets.yaml").write_text(GOOD_TARGET.replace("bfloat16", "float32"))
    run("gate", MODEL, expect=3)
    run("plan", MODEL)
    run("apply", MODEL)
    console.print("\nfloat32 also keeps the tighter contract, which bf16 could not:")
    run("certify", MODEL, "--contract", HERE / "contracts" / "chat-fp32.yaml")
    run("gate", MODEL)


def known_bad_engine() -> None:
    console.rule("(d) A patched engine that scales one layer wrongly")
    interpreter = install_faulty_engine(PLACE / "patched")
    (HOME / "targets.yaml").write_text(GOOD_TARGET.replace("}", f", interpreter: {interpreter}}}"))
    run("gate", MODEL, expect=3)
    run("certify", MODEL, expect=1)
    run("gate", MODEL, expect=1)


def everything_back() -> None:
    console.rule("(e) Everything put back")
    (HOME / "targets.yaml").write_text(GOOD_TARGET)
    run("gate", MODEL, "--for", "production")
    console.print("\nIssued anew from the evidence there is, so that the newest certificate speaks of what serves now:")
    run("certify", MODEL)


def erasure() -> None:
    console.rule("(f) Three flights must be erased")
    keys = PLACE / "erase.csv"
    keys.write_text("flight_id\n134224\n136125\n205878\n")  # three that the trainer drew, so its weights must change
    run("erase", "--snapshot", "flights", "--keys", keys, "--reason", "asked for by the carrier")
    run("gate", MODEL, expect=1)
    run("plan", MODEL)
    console.print("\nRetrained without them, and certified anew:")
    run("apply", MODEL)
    run("erasures")
    run("gate", MODEL, "--for", "production")
    run("promote", MODEL, "--to", "champion")


def command(*arguments: str | Path) -> list[str]:
    return [SNAPLINE, *map(str, arguments), "--home", str(HOME)]


def run(*arguments: str | Path, expect: int = 0) -> None:
    """Show a command, run it, and insist on its exit code."""
    shown = " ".join(os.path.relpath(a) if isinstance(a, Path) else a for a in arguments)
    console.print(f"\n[bold]$ snapline {shown}[/bold]", soft_wrap=True)
    code = subprocess.run(command(*arguments), check=False).returncode
    console.print(f"[dim]exit {code}[/dim]")
    if code != expect:
        console.print(f"[red]expected exit {expect}: the story does not go on[/red]")
        raise SystemExit(1)


if __name__ == "__main__":
    main()
