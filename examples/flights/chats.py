"""Chats about flights: what the model is tuned on, and what it is later probed with."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from datetime import date
from typing import Any

Row = Mapping[str, Any]
Chat = tuple[str, str]

AIRLINES = {
    "9E": "Endeavor Air",
    "AA": "American Airlines",
    "AS": "Alaska Airlines",
    "B6": "JetBlue Airways",
    "DL": "Delta Air Lines",
    "EV": "ExpressJet Airlines",
    "F9": "Frontier Airlines",
    "FL": "AirTran Airways",
    "HA": "Hawaiian Airlines",
    "MQ": "Envoy Air",
    "OO": "SkyWest Airlines",
    "UA": "United Air Lines",
    "US": "US Airways",
    "VX": "Virgin America",
    "WN": "Southwest Airlines",
    "YV": "Mesa Airlines",
}


def _number(row: Row) -> str:
    return f"{row['carrier']} {row['flight']}"


def _day(row: Row) -> str:
    day = date(row["year"], row["month"], row["day"])
    return f"{day.day} {day:%B %Y}"


def _clock(hhmm: int) -> str:
    return f"{hhmm // 100 % 24:02d}:{hhmm % 100:02d}"


def _punctuality(minutes: int) -> str:
    if minutes == 0:
        return "on time"
    return f"{abs(minutes)} minute{'' if abs(minutes) == 1 else 's'} {'late' if minutes > 0 else 'early'}"


def _departure(row: Row) -> Chat:
    return (
        f"Flight {_number(row)} was due to leave {row['origin']} at {_clock(row['sched_dep_time'])} "
        f"on {_day(row)}. When did it leave?",
        f"{_number(row)} left {row['origin']} at {_clock(row['dep_time_local'])}, {_punctuality(row['dep_delay'])}.",
    )


def _arrival(row: Row) -> Chat:
    return (
        f"Did {_number(row)} from {row['origin']} to {row['dest']} arrive on time on {_day(row)}?",
        f"{_number(row)} arrived at {row['dest']} {_punctuality(row['arr_delay'])}.",
    )


def _route(row: Row) -> Chat:
    return (
        f"Where does flight {_number(row)} from {row['origin']} at {_clock(row['sched_dep_time'])} go, and how far?",
        f"{_number(row)} flies from {row['origin']} to {row['dest']}, {row['distance']} miles.",
    )


def _airline(row: Row) -> Chat:
    return (
        f"Which airline flies {_number(row)} from {row['origin']} to {row['dest']}?",
        f"{_number(row)} to {row['dest']} is flown by {AIRLINES[row['carrier']]}.",
    )


def _duration(row: Row) -> Chat:
    hours, minutes = divmod(row["air_time"], 60)
    return (
        f"How long was flight {_number(row)} to {row['dest']} in the air on {_day(row)}?",
        f"{_number(row)} to {row['dest']} was in the air for {hours} h {minutes} min.",
    )


TEMPLATES: tuple[Callable[[Row], Chat], ...] = (_departure, _arrival, _route, _airline, _duration)


def order(flight_id: int, seed: int) -> bytes:
    """Return the flight's place in the seeded order of sampling: a hash, so it depends on nothing but its arguments."""
    return hashlib.sha256(f"{seed}:{flight_id}".encode()).digest()


def sample(flight_ids: Iterable[int], size: int, seed: int) -> list[int]:
    """Return the first `size` flight ids in seeded order, fewer when there are fewer; the given order means nothing."""
    return sorted(flight_ids, key=lambda flight_id: order(flight_id, seed))[:size]


def render(row: Row, seed: int) -> Chat:
    """Return a question about the flight and its true short answer; the flight and the seed choose the template.

    Args:
        row: A flight that arrived, as `prepare.py` writes it.
        seed: The seed of the sample.
    """
    return TEMPLATES[order(row["flight_id"], seed)[-1] % len(TEMPLATES)](row)
