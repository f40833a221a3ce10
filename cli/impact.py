"""`snapline impact`: what was made from a model, a snapshot or a source, and who relies on it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snapline.cli.options import HomeOption, JsonOption
from snapline.cli.output import Output
from snapline.cli.past import AtEntryOption, AtOption, past

if TYPE_CHECKING:
    from rich.console import Console

    from snapline.cli.wiring import Home
    from snapline.lineage.impact import Subject
    from snapline.lineage.model import ModelVersion, VersionKey
    from snapline.lineage.snapshot import Manifest, Snapshot
    from snapline.lineage.state import State


def impact(
    subject: Annotated[str, typer.Argument(help="A model, a snapshot, or a source, which may end in @2013-01-24.")],
    at: AtOption = None,
    at_entry: AtEntryOption = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show everything made from a model, a snapshot, a source or one bucket of it, however indirectly."""
    from snapline.cli.wiring import Home
    from snapline.lineage.impact import downstream, tables_of
    from snapline.lineage.model import parse_reference

    opened, output = Home.open(home), Output(as_json)
    state = past(opened, at, at_entry, output).state
    asked = _subject(subject, state, opened)
    affected: list[dict[str, Any]] = []
    held = _held(state)
    for row in downstream(tables_of(state), asked).to_pylist():
        kept = {name: row[name] for name in ("id", "kind", "label", "distance")}
        kept["via"] = {"edge": row["edge"], "id": row["from_id"]}
        if row["kind"] == "model":
            version = state.resolve(parse_reference(row["id"].removeprefix("model:")))
            kept |= _reliance(version, state, opened) | held.get(version.key, {"aliases": [], "targets": []})
        affected.append(kept)
    output.answer(
        {"subject": asked.name, "affected": affected}, lambda console: _affected(console, asked.name, affected)
    )


def _subject(text: str, state: State, opened: Home) -> Subject:
    from snapline.lineage.errors import DefinitionError, NotFoundError
    from snapline.lineage.impact import subject_of
    from snapline.lineage.sources.opening import normalise

    read = manifest_reader(opened, state)
    try:
        return subject_of(text, state, read)
    except NotFoundError:
        # A source as a person writes it: a path from here, and perhaps a bucket.
        place, at, label = text.removeprefix("source:").rpartition("@")
        for spelled, bucket in ((text.removeprefix("source:"), ""), (place, f"{at}{label}")):
            with suppress(DefinitionError, NotFoundError):
                return subject_of(f"source:{normalise(spelled, Path.cwd())}{bucket}", state, read)
        raise


def manifest_reader(opened: Home, state: State) -> Callable[[Snapshot], Manifest]:
    """Return how a snapshot's manifest is read."""
    from snapline.lineage.manifest import decode_manifest

    objects = opened.objects(state.algorithm)

    def read(snapshot: Snapshot) -> Manifest:
        return decode_manifest(objects.read(snapshot.manifest))

    return read


def _held(state: State) -> dict[VersionKey, dict[str, list[str]]]:
    """Return the aliases that versions hold, and the targets they were promoted for with them."""
    held: dict[VersionKey, dict[str, list[str]]] = {}
    for (_, alias), stack in sorted(state.holders.items()):
        if stack:
            found = held.setdefault(stack[-1].model, {"aliases": [], "targets": []})
            found["aliases"].append(alias)
            found["targets"] = sorted({*found["targets"], stack[-1].target})
    return held


def _reliance(version: ModelVersion, state: State, opened: Home) -> dict[str, Any]:
    """Return what a version's certificates say, how many cannot be believed, and whether it was retired."""
    from snapline.contracts import certificate
    from snapline.contracts.gate import readable

    objects = opened.objects(state.algorithm)
    known, damage = readable(
        version, state, lambda attested: certificate.read(objects.read(attested.envelope), opened.trusted)
    )
    return {
        "certificates": [
            {"target": found.target, "contract": found.contract.name, "verdict": found.verdict.value}
            for _, found in known
        ],
        "damaged": len(damage),
        "retired": version.key in state.retired,
    }


def _affected(console: Console, subject: str, affected: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    counts = {kind: sum(row["kind"] == kind for row in affected) for kind in ("snapshot", "model")}
    said = " and ".join(f"{count} {kind}{'' if count == 1 else 's'}" for kind, count in counts.items() if count)
    console.print(Text(f"{subject}: {said or 'nothing'} made from it"))
    if not affected:
        return
    table = Table("steps", "affected", "because", "aliases", "certificates", box=box.SIMPLE_HEAD, pad_edge=False)
    labels = {row["id"]: row["label"].split("  ")[0] for row in affected}
    for row in affected:
        via = row["via"]
        verdicts = {f"{one['target']} {one['verdict']}": None for one in row.get("certificates", ())}
        verdicts |= {"damaged": None} if row.get("damaged") else {}
        aliases = [*row.get("aliases", ()), *(["(retired)"] if row.get("retired") else [])]
        through = labels.get(via["id"], _short(via["id"]))
        cells = (row["label"], f"{via['edge']} {through}", ", ".join(aliases) or "-", ", ".join(verdicts) or "-")
        table.add_row(str(row["distance"]), *map(Text, cells))
    console.print(table)


def _short(identifier: str) -> str:
    kind, _, rest = identifier.partition(":")
    if kind == "snapshot":
        return f"{kind} {rest[:12]}"
    return rest.rpartition("/")[2] if kind == "source" else rest
