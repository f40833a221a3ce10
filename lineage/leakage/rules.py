"""Leakage rules: the document that says which columns carry the instants, entities and content to check.

An example with prediction time p is clean when, in microseconds and finer, exactly as written here:

    feature   event time <= p - embargo, and known time <= p
    label     event time > p, and <= p + horizon where one is given; known time <= what its snapshot was read as of
    entity    no evaluation row shares one with a training row
    cut       an evaluation row's p (its event time, without `prediction_time`) >= the `until` of every training cut
    content   no evaluation row is a near-duplicate of a training row (see `near_duplicates`)

The rules of features and labels hold for training and evaluation rows alike. A missing time cannot be shown to be
before anything, so it is a finding of its own kind, `unknown-time`, and a missing entity is `unknown-entity`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Literal, Self

import yaml
from pydantic import Field, StringConstraints, model_validator

from snapline.lineage.documents import Value, parse
from snapline.lineage.errors import DefinitionError, NotFoundError
from snapline.lineage.snapshot import Name
from snapline.lineage.view import Duration

ColumnName = Annotated[str, StringConstraints(min_length=1)]
Location = tuple[str | int, ...]


class Chosen(Value):
    """A snapshot by reference: `NAME` is the one of that series the model used, `NAME@ID` exactly that one."""

    snapshot: Annotated[str, StringConstraints(min_length=1)]


class Feature(Value):
    """A feature, or one column that stands for a group of them, and the columns with its event and known time."""

    column: ColumnName
    time: ColumnName
    known: ColumnName | None = None


class Label(Value):
    """The columns with the label's event and known time."""

    time: ColumnName
    known: ColumnName | None = None


class NearDuplicates(Value):
    """The columns that together make a row's content."""

    columns: Annotated[tuple[ColumnName, ...], Field(min_length=1)]


class LeakageRules(Value):
    """The document a person writes.

    Attributes:
        train: The training rows; None means the snapshots the model was trained on.
        evaluation: The evaluation rows; None means the snapshots the model was evaluated on.
        prediction_time: The column with each example's p; features and labels need it.
        embargo: How long before p a feature's event must have ended.
        horizon: How long after p a label's event may lie at most; None for any time.
        entity: The column that names whom or what a row is about.
    """

    apiVersion: Literal["snapline/v1"]  # noqa: N815 - the document's spelling
    kind: Literal["LeakageRules"]
    name: Name
    train: Chosen | None = None
    evaluation: Chosen | None = None
    prediction_time: ColumnName | None = None
    embargo: Duration = timedelta()
    horizon: Duration | None = None
    features: tuple[Feature, ...] = ()
    label: Label | None = None
    entity: ColumnName | None = None
    near_duplicates: NearDuplicates | None = None

    @model_validator(mode="after")
    def _each_rule_has_what_it_needs(self) -> Self:
        if (self.features or self.label) and self.prediction_time is None:
            raise ValueError("features and label are held against prediction_time, which is missing")
        if self.embargo and not self.features:
            raise ValueError("embargo is about features, and there are none")
        if self.horizon is not None and (self.label is None or not self.horizon):
            raise ValueError("horizon is about the label: expected a label, and a horizon longer than nothing")
        names = [feature.column for feature in self.features]
        if len(set(names)) < len(names):
            raise ValueError(f"expected each feature once, found {', '.join(names)}")
        return self

    @property
    def times(self) -> Mapping[str, Location]:
        """Every column of instants, and where the document names it first; p comes first."""
        named: list[tuple[str | None, Location]] = [(self.prediction_time, ("prediction_time",))]
        for index, feature in enumerate(self.features):
            named += [(feature.time, ("features", index, "time")), (feature.known, ("features", index, "known"))]
        if self.label:
            named += [(self.label.time, ("label", "time")), (self.label.known, ("label", "known"))]
        found: dict[str, Location] = {}
        for column, location in named:
            if column is not None:
                found.setdefault(column, location)
        return found

    @property
    def about_evaluation(self) -> tuple[str, ...]:
        """The fields that ask something of evaluation rows in particular."""
        return tuple(field for field in ("evaluation", "entity", "near_duplicates") if getattr(self, field) is not None)


@dataclass(frozen=True, slots=True)
class Rules:
    """A rules document with the bytes it was read from and what messages call them."""

    document: LeakageRules
    data: bytes
    name: str

    def place(self, *location: str | int) -> str:
        """Return file, line and field of a part of the document, as messages write them."""
        node, line = yaml.compose(self.data.decode(), Loader=yaml.CBaseLoader), 1
        for part in location:
            if isinstance(node, yaml.MappingNode):
                key, node = next((key, value) for key, value in node.value if key.value == part)
                line = key.start_mark.line + 1
            elif isinstance(node, yaml.SequenceNode) and isinstance(part, int):
                node = node.value[part]
                line = node.start_mark.line + 1
        return f"{self.name}:{line}: {'.'.join(map(str, location))}"


def load_rules(path: Path) -> Rules:
    """Return the rules in a file.

    Raises:
        NotFoundError: There is no such file.
        DefinitionError: It is no rules document; the message names file, line and field.
    """
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFoundError(f"no file {path}", hint="Check the path.") from error
    except OSError as error:
        raise DefinitionError(f"{path}: cannot be read as text: {error}", hint="Name a rules document.") from error
    return parse_rules(data, str(path))


def parse_rules(data: bytes, name: str) -> Rules:
    """Return the rules some bytes spell; `name` is what messages call them.

    Raises:
        DefinitionError: They are not text, or no rules document.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DefinitionError(f"{name}: cannot be read as text: {error}", hint="Write it in UTF-8.") from error
    return Rules(parse(text, LeakageRules, name=name), data, name)
