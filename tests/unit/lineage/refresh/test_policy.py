"""Refresh policies: what a person may write, and the change rates that history tells."""

from __future__ import annotations

import math
from datetime import timedelta
from pathlib import Path

import pytest
from lineage_home import DAY, NOW, LineageHome

from snapline.lineage.documents import parse
from snapline.lineage.errors import DefinitionError
from snapline.lineage.refresh.policy import (
    Poll,
    RefreshPolicyDocument,
    estimate,
    estimates,
    polls_of,
    segments_of,
)
from snapline.lineage.register import Origin

HEAD = "apiVersion: snapline/v1\nkind: RefreshPolicy\nbudget: 2\nsegments:\n"


def read(*lines: str, head: str = HEAD) -> RefreshPolicyDocument:
    return parse(head + "".join(f"- {{{line}}}\n" for line in lines), RefreshPolicyDocument, name="policy.yaml")


def refused(*lines: str, head: str = HEAD) -> str:
    with pytest.raises(DefinitionError) as caught:
        read(*lines, head=head)
    return caught.value.message


def test_numbers_and_strings_say_the_same_and_a_cost_is_one_unless_said() -> None:
    found = segments_of(read('name: a, weight: "0.5", change_rate: 1e-2', "name: b, weight: 0, change_rate: 3"), {})
    assert found.weight.tolist() == [0.5, 0]
    assert found.change_rate.tolist() == [0.01, 3]
    assert found.cost.tolist() == [1, 1]


def test_a_weight_is_given_or_is_traffic_times_sensitivity() -> None:
    found = segments_of(read("name: a, traffic: 6, sensitivity: 0.5, change_rate: 1, cost: 4"), {})
    assert (found.weight.tolist(), found.cost.tolist()) == ([3], [4])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("name: a, weight: -1, change_rate: 1", "policy.yaml:5: segments.0.weight: "),
        ("name: a, weight: nan, change_rate: 1", "policy.yaml:5: segments.0.weight: Input should be a finite number"),
        ("name: a, weight: 1, change_rate: inf", "policy.yaml:5: segments.0.change_rate: Input should be a finite"),
        ("name: a, weight: 1, change_rate: 1e400", "policy.yaml:5: segments.0.change_rate: Input should be a finite"),
        ("name: a, weight: 1e31, change_rate: 1", "policy.yaml:5: segments.0.weight: expected 0 or a number from"),
        ("name: a, weight: 1, change_rate: often", "policy.yaml:5: segments.0.change_rate: "),
        ("name: a, weight: 1, change_rate: 1, cost: 0", "policy.yaml:5: segments.0.cost: "),
        ("name: a, weight: 1", "policy.yaml:5: segments.0: expected change_rate or snapshot, found neither"),
        ("name: a, weight: 1, change_rate: 1, snapshot: s", "policy.yaml:5: segments.0: expected change_rate or"),
        ("name: a, change_rate: 1", "policy.yaml:5: segments.0: expected weight, or both traffic and sensitivity"),
        ("name: a, traffic: 1, change_rate: 1", "policy.yaml:5: segments.0: expected weight, or both"),
        ("name: a, weight: 1, traffic: 1, change_rate: 1", "policy.yaml:5: segments.0: expected weight, or traffic"),
        ("name: a, traffic: 1e20, sensitivity: 1e20, change_rate: 1", "policy.yaml:5: segments.0: expected 0 or"),
        ("name: '', weight: 1, change_rate: 1", "policy.yaml:5: segments.0.name: "),
        ("weight: 1, change_rate: 1", "policy.yaml:5: segments.0.name: Field required"),
        ("name: a, wieght: 1, change_rate: 1", "policy.yaml:5: segments.0.wieght: no such field; did you mean"),
    ],
)
def test_what_is_no_segment_is_refused_at_its_line_and_field(line: str, message: str) -> None:
    assert message in refused(line)


def test_a_policy_has_segments_whose_names_differ_and_something_to_spend() -> None:
    assert "policy.yaml:4: segments: expected at least one segment" in refused(head=HEAD.replace(":\n", ": []\n"))
    twice = "name: a, weight: 1, change_rate: 1"
    assert "policy.yaml:4: segments: expected a name for each segment, found 'a' twice" in refused(twice, twice)
    assert "policy.yaml:3: budget: " in refused(twice, head=HEAD.replace("2", "0"))
    assert "budget: Field required" in refused(twice, head=HEAD.replace("budget: 2\n", ""))
    assert "policy.yaml:2: kind: " in refused(twice, head=HEAD.replace("RefreshPolicy", "View"))


def poll(days: float, found: str) -> Poll:
    return Poll(NOW + timedelta(days=days), (found, None))


def test_polls_tell_a_rate_a_day() -> None:
    told = estimate([poll(0, "a"), poll(2, "a"), poll(3, "b"), poll(6, "b")])
    assert told is not None
    assert (told.polls, told.unchanged, told.mean_interval) == (3, 2, 2.0)
    assert told.change_rate == pytest.approx(-math.log(2.5 / 3.5) / 2)


@pytest.mark.parametrize("polls", [[], [poll(0, "a")], [poll(0, "a"), poll(0, "b")]])
def test_no_rate_is_told_without_two_looks_at_two_instants(polls: list[Poll]) -> None:
    assert estimate(polls) is None
    with pytest.raises(DefinitionError, match=f"the ledger has {len(polls)}"):
        estimates(read("name: a, weight: 1, snapshot: trips"), lambda _series: polls)


def test_history_is_looked_at_once_for_each_series_and_given_to_every_segment() -> None:
    asked: list[str] = []

    def polls(series: str) -> list[Poll]:
        asked.append(series)
        return [poll(0, "a"), poll(1, "b")]

    policy = read(
        "name: a, weight: 1, snapshot: s", "name: b, weight: 1, change_rate: 5", "name: c, weight: 1, snapshot: s"
    )
    found = segments_of(policy, estimates(policy, polls))
    assert asked == ["s"]
    assert found.change_rate == pytest.approx([math.log(3), 5, math.log(3)])


def test_takes_and_comparisons_of_a_series_are_its_polls(tmp_path: Path) -> None:
    home = LineageHome(tmp_path)

    def polls() -> list[Poll]:
        return polls_of("trips", [record.event for record in home.ledger.entries()])

    home.take(now=NOW)
    home.take(now=NOW + DAY)  # nothing new
    home.rows[0]["delay"] = 99
    home.write()
    home.take(now=NOW + 2 * DAY)  # restated
    home.take("others", home.options(), now=NOW)
    assert [(told.at - NOW) / DAY for told in polls()] == [0, 1, 2]
    told = estimate(polls())
    assert told is not None
    assert (told.polls, told.unchanged, told.mean_interval) == (2, 1, 1.0)

    home.define()
    model = home.register("delays", 1, Origin("delays", ("trips",)))
    for day, delay in ((3, 1), (4, 2)):  # two comparisons that differ from the cut, and from each other
        home.rows[0]["delay"] = delay
        home.rows.append(home.rows[0] | {"id": 100 + day})
        home.write()
        compared = verified(home, model, day)
        home.ledger.commit(lambda _state, compared=compared: compared)  # type: ignore[misc]
    told = estimate(polls())
    assert told is not None
    assert (told.polls, told.unchanged) == (4, 1)


def verified(home: LineageHome, model: object, day: int) -> object:
    from snapline.lineage.observe import Depth

    return home.observe(model, Depth(rows=True), NOW + day * DAY).compared  # type: ignore[arg-type]
