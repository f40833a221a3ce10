"""Hold training and evaluation rows against leakage rules: one SQL question for each rule.

What the rules say is in `leakage_rules`, what they are asked of in `leakage_examples`. A row with an unknown time or
entity breaks no rule that compares it, and is found under `unknown-time` or `unknown-entity` instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from snapline.lineage.events import RuleFinding
from snapline.lineage.leakage.examples import Examples, Inputs, instant_sql, nanoseconds, quoted
from snapline.lineage.leakage.rules import LeakageRules, Rules
from snapline.lineage.query import evaluate

STORED_ROWS = 1000
TRAINING, EVALUATION = "training", "evaluation"
_WORDS = {">": "at most", "<=": "after", "<": "at or after"}
_WHOLE = "(ns - (ns % 1000 + 1000) % 1000)"  # rounded down to a microsecond, before the epoch too
_INSTANT = f"""
CREATE TEMP MACRO instant(ns) AS coalesce(
    TRY(strftime(make_timestamp(CAST({_WHOLE} // 1000 AS BIGINT)), '%Y-%m-%dT%H:%M:%S.%f')
        || CASE WHEN ns % 1000 = 0 THEN '' ELSE lpad(CAST(ns - {_WHOLE} AS VARCHAR), 3, '0') END || 'Z'),
    CAST(ns AS VARCHAR) || ' ns after 1970')
"""
ROWS_SCHEMA = pa.schema(
    [
        (name, pa.string())
        for name in ("rule", "snapshot", "key", "column", "value", "allowed", "train_snapshot", "train_key")
    ]
)


@dataclass(frozen=True, slots=True)
class LeakageReport:
    """What was found.

    Attributes:
        findings: Every rule that was checked, with how many rows break it.
        rows: Rows that break a rule, at most STORED_ROWS of each, the first by snapshot and key: `value` in `column`
            breaks the rule, `allowed` says what would not, and an evaluation row that shares something with training
            rows names the first of those. Columns are those of ROWS_SCHEMA.
        unchecked: What the rules ask and nothing could answer, and why.
        remarks: What else a reader of the findings should know.
    """

    findings: tuple[RuleFinding, ...]
    rows: pa.Table
    unchecked: tuple[str, ...]
    remarks: tuple[str, ...]

    @property
    def leaked(self) -> bool:
        """Whether any row breaks a rule."""
        return any(finding.rows for finding in self.findings)


@dataclass(frozen=True, slots=True)
class _Rule:
    """A rule, and the SELECT of the rows that break it: the columns of ROWS_SCHEMA but the first, keys uncast."""

    name: str
    broken: str


@dataclass(slots=True)
class _Plan:
    rules: list[_Rule] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def check(rules: Rules, train: Sequence[Inputs], evaluation: Sequence[Inputs]) -> LeakageReport:
    """Return which rows break which rule; the order of the rows does not show.

    Args:
        rules: What the columns mean.
        train: The snapshots with training rows; at least one.
        evaluation: The snapshots with evaluation rows; may be none.

    Raises:
        DefinitionError: A snapshot lacks a column the rules name, or holds values there that cannot be compared; the
            message names file, line and field.
    """
    examples = Examples(rules, {TRAINING: train, EVALUATION: evaluation})
    plan = _plan(rules.document, examples, train, evaluation)
    questions = [question for rule in plan.rules for question in (_counting(rule), _keeping(rule))]
    without_content = _without_content(rules.document, evaluation)
    answers = evaluate(examples.tables, [_INSTANT, *examples.setup], [*questions, *without_content.values()])
    numbers = [_number(answer) for answer in answers[len(questions) :]]
    for side, number in zip(without_content, numbers, strict=True):
        if number:
            plan.remarks.append(f"near-duplicate: {number} {side} rows have no content in those columns")
    return _report(plan, answers[: len(questions)])


def _report(plan: _Plan, answers: Sequence[pa.Table]) -> LeakageReport:
    findings, kept = [], [ROWS_SCHEMA.empty_table()]
    for rule, counted, rows in zip(plan.rules, answers[::2], answers[1::2], strict=True):
        finding = RuleFinding(rule=rule.name, rows=_number(counted))
        findings.append(finding)
        named = rows.add_column(0, "rule", pa.array([rule.name] * rows.num_rows, pa.string()))
        kept.append(named.cast(ROWS_SCHEMA))
        if finding.rows > rows.num_rows:
            plan.remarks.append(f"{rule.name}: the first {rows.num_rows} of {finding.rows} rows are kept, by key")
    table = pa.concat_tables(kept).combine_chunks()
    return LeakageReport(tuple(findings), table, tuple(plan.unchecked), tuple(plan.remarks))


def _number(answer: pa.Table) -> int:
    return int(answer.column(0)[0].as_py())


def _counting(rule: _Rule) -> str:
    return f"SELECT count(*) FROM ({rule.broken})"


def _keeping(rule: _Rule) -> str:
    return (
        'SELECT snapshot, CAST(key AS VARCHAR) AS key, "column", value, allowed, train_snapshot, '
        f"CAST(train_key AS VARCHAR) AS train_key FROM ({rule.broken}) AS broken "
        f"ORDER BY broken.snapshot, broken.key, broken.value, broken.allowed LIMIT {STORED_ROWS}"
    )


def _plan(document: LeakageRules, examples: Examples, train: Sequence[Inputs], evaluation: Sequence[Inputs]) -> _Plan:
    """Return what can be asked of these snapshots."""
    plan = _Plan()
    for side, parts in ((TRAINING, train), (EVALUATION, evaluation)):
        if _has_rows(parts):
            plan.rules += _of_each_example(document, examples, side, parts)
            plan.unchecked += _label_unchecked(document, side, parts)
        elif parts:
            names = ", ".join(part.snapshot for part in parts)
            plan.unchecked.append(f"{side}: {names} has no rows, so there was nothing to check")
    if not evaluation:
        asked = document.about_evaluation
        said = f"{', '.join(asked) or EVALUATION}: no evaluation snapshot is named, by the rules or by the model"
        # Rules that ask nothing of one example alone would otherwise pass without having looked at anything.
        enough = not asked and (document.features or document.label)
        (plan.remarks if enough else plan.unchecked).append(said)
    elif _has_rows(evaluation):
        column = document.prediction_time or ", ".join(dict.fromkeys(part.time for part in evaluation))
        if document.prediction_time is None:
            plan.rules.append(_Rule(f"{EVALUATION}/unknown-time/{column}", _unknown(EVALUATION, column, "p")))
        until = instant_sql(max(part.until for part in train))
        plan.rules.append(_Rule("evaluation-before-cut", _times(EVALUATION, column, "p", "<", until)))
        if _has_rows(train):
            plan.rules += _of_both(document)
    return plan


def _has_rows(parts: Sequence[Inputs]) -> bool:
    return any(part.table.num_rows for part in parts)


def _of_each_example(document: LeakageRules, examples: Examples, side: str, parts: Sequence[Inputs]) -> Iterator[_Rule]:
    """Yield the rules that look at one example alone."""
    for column in document.times:
        yield _Rule(f"{side}/unknown-time/{column}", _unknown(side, column, examples.time(column)))
    if document.entity:
        yield _Rule(f"{side}/unknown-entity/{document.entity}", _unknown(side, document.entity, "entity"))
    bounds: list[tuple[str, str, str, str]] = []
    for feature in document.features:
        before = f"p - {nanoseconds(document.embargo)}"
        bounds.append((f"feature-event-time/{feature.column}", feature.time, ">", before))
        if feature.known:
            bounds.append((f"feature-known-time/{feature.column}", feature.known, ">", "p"))
    if label := document.label:
        bounds.append(("label-event-time", label.time, "<=", "p"))
        if document.horizon:
            bounds.append(("label-horizon", label.time, ">", f"p + {nanoseconds(document.horizon)}"))
        if label.known and any(part.read_as_of for part in parts):
            bounds.append(("label-known-time", label.known, ">", "read_as_of"))
    for name, column, operator, bound in bounds:
        yield _Rule(f"{side}/{name}", _times(side, column, examples.time(column), operator, bound))


def _label_unchecked(document: LeakageRules, side: str, parts: Sequence[Inputs]) -> Iterator[str]:
    if document.label and document.label.known:
        for part in parts:
            if part.read_as_of is None:
                yield f"{side}/label-known-time: nothing states as of when {part.snapshot} was read"


def _of_both(document: LeakageRules) -> Iterator[_Rule]:
    """Yield the rules that an evaluation row breaks together with training rows."""
    if document.entity:
        yield _Rule("entity-overlap", _shared("entity", document.entity))
    if document.near_duplicates:
        yield _Rule("near-duplicate", _shared("content", ", ".join(document.near_duplicates.columns)))


def _without_content(document: LeakageRules, evaluation: Sequence[Inputs]) -> dict[str, str]:
    """Return, for each side, the question how many rows have nothing that could be repeated."""
    sides = (TRAINING, *((EVALUATION,) if evaluation else ())) if document.near_duplicates else ()
    return {side: f"SELECT count(*) FROM {side} WHERE content IS NULL" for side in sides}


def _times(side: str, column: str, name: str, operator: str, bound: str) -> str:
    """Return the SELECT of rows whose instant compares so with a bound; an unknown instant does not compare."""
    allowed = f"'{_WORDS[operator]} ' || instant({bound})"
    return _alone(side, column, f"instant({name})", allowed, f"{name} {operator} {bound}")


def _unknown(side: str, column: str, name: str) -> str:
    return _alone(side, column, "NULL", "'a value'", f"{name} IS NULL")


def _alone(side: str, column: str, value: str, allowed: str, where: str) -> str:
    return (
        f'SELECT snapshot, key, {quoted(column)} AS "column", {value} AS value, {allowed} AS allowed, '
        f"NULL AS train_snapshot, NULL AS train_key FROM {side} WHERE {where}"
    )


def _shared(name: str, column: str) -> str:
    """Return the SELECT of evaluation rows that share a value with training rows, each with the first of those."""
    named = "{'snapshot': snapshot, 'key': key}"
    seen = f"SELECT {name}, min({named}) AS one, count(*) AS rows FROM {TRAINING} GROUP BY {name}"
    return (
        f'SELECT snapshot, key, {quoted(column)} AS "column", CAST({name} AS VARCHAR) AS value, '
        "'what no training row has, found in ' || seen.rows AS allowed, "
        "seen.one.snapshot AS train_snapshot, seen.one.key AS train_key "
        f"FROM {EVALUATION} JOIN ({seen}) AS seen USING ({name})"
    )
