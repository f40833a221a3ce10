"""Where the boxes of a drawn graph go: layers from left to right, ordered so that few lines cross.

The method is the usual one for layered drawings: longest-path layers, a bend wherever a line passes a layer, and
sweeps that order each layer by the mean place of its neighbours. What is drawn is small, so a few sweeps are enough.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

SWEEPS = 8
ROW_GAP, BEND_HEIGHT = 22.0, 8.0
LEAVING_GAP, ARRIVING_GAP = 15.0, 8.0


@dataclass(frozen=True, slots=True)
class Size:
    """Width and height of a box, in pixels."""

    width: float
    height: float


@dataclass(frozen=True, slots=True)
class Placed:
    """A box's left edge, its width (that of its layer), and the height of its centre line."""

    left: float
    width: float
    middle: float


@dataclass(frozen=True, slots=True)
class Layout:
    """A drawing's size, the place of each box, and the points each line goes through, in the order of the pairs."""

    width: float
    height: float
    boxes: Mapping[str, Placed]
    lines: tuple[tuple[tuple[float, float], ...], ...]


def layered(sizes: Mapping[str, Size], pairs: Sequence[tuple[str, str]], column_gap: float) -> Layout:
    """Return a layout in which every pair goes from left to right, but for those that close a circle.

    Args:
        sizes: The boxes by name, in the order that breaks ties.
        pairs: From and to; both must be boxes.
        column_gap: The room between two layers.
    """
    layers_of = _layers(list(sizes), pairs)
    routes = [_route(number, pair, layers_of) for number, pair in enumerate(pairs)]
    everything = dict(sizes)
    for route in routes:
        everything |= {bend: Size(0, BEND_HEIGHT) for bend in route[1:-1]}
        layers_of |= {bend: layers_of[route[0]] + step for step, bend in enumerate(route[1:-1], start=1)}
    neighbours: dict[str, list[str]] = {name: [] for name in everything}
    for route in routes:
        for before, after in pairwise(route):
            neighbours[before].append(after)
            neighbours[after].append(before)
    columns: list[list[str]] = [[] for _ in range(max(layers_of.values(), default=-1) + 1)]
    for name in everything:
        columns[layers_of[name]].append(name)
    middles = _middles(columns, neighbours, everything)
    top = min((middles[name] - everything[name].height / 2 for name in everything), default=0.0)
    boxes: dict[str, Placed] = {}
    left = 0.0
    for column in columns:
        width = max(everything[name].width for name in column)
        boxes |= {name: Placed(left, width, middles[name] - top) for name in column}
        left += width + column_gap
    height = max((boxes[name].middle + everything[name].height / 2 for name in everything), default=0.0)
    leaving = _ports([(route[0], boxes[route[1]].middle) for route in routes], LEAVING_GAP)
    arriving = _ports([(route[-1], boxes[route[-2]].middle) for route in routes], ARRIVING_GAP)
    lines = tuple(_points(route, boxes, *ends) for route, *ends in zip(routes, leaving, arriving, strict=True))
    return Layout(max(0.0, left - column_gap), height, {name: boxes[name] for name in sizes}, lines)


def _layers(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Return each box's layer: how many boxes the longest way to it passes; a circle is entered at its first box."""
    following: dict[str, list[str]] = {name: [] for name in names}
    waits = dict.fromkeys(names, 0)
    for source, target in dict.fromkeys(pairs):
        if source != target:
            following[source].append(target)
            waits[target] += 1
    layers = dict.fromkeys(names, 0)
    done: set[str] = set()
    ready = [name for name in names if waits[name] == 0]
    while len(done) < len(names):
        if not ready:
            ready = [next(name for name in names if name not in done)]
        here = ready.pop(0)
        done.add(here)
        for target in following[here]:
            if target in done:
                continue
            layers[target] = max(layers[target], layers[here] + 1)
            waits[target] -= 1
            if waits[target] == 0:
                ready.append(target)
    return layers


def _route(number: int, pair: tuple[str, str], layers: Mapping[str, int]) -> list[str]:
    source, target = pair
    return [source, *(f"\x00{number}.{layer}" for layer in range(layers[source] + 1, layers[target])), target]


def _middles(
    columns: list[list[str]], neighbours: Mapping[str, list[str]], sizes: Mapping[str, Size]
) -> dict[str, float]:
    middles: dict[str, float] = {}
    for column in columns:
        middles |= _settled(column, dict.fromkeys(column, 0.0), sizes)
    for sweep in range(SWEEPS):
        for column in columns if sweep % 2 == 0 else reversed(columns):
            wanted = {
                name: sum(middles[other] for other in neighbours[name]) / len(neighbours[name])
                if neighbours[name]
                else middles[name]
                for name in column
            }
            column.sort(key=wanted.__getitem__)
            middles |= _settled(column, wanted, sizes)
    return middles


def _settled(column: Sequence[str], wanted: Mapping[str, float], sizes: Mapping[str, Size]) -> dict[str, float]:
    """Return the middles nearest to the wanted ones, in the column's order, at which no two boxes touch.

    Once the room the boxes before it take is subtracted, each box's place may not be above that of the one before it:
    least squares under that condition is pooling neighbours that disagree into their mean.
    """
    offsets, room = [], 0.0
    for name in column:
        offsets.append(room + sizes[name].height / 2)
        room += sizes[name].height + ROW_GAP
    pools: list[tuple[float, int]] = []
    for name, offset in zip(column, offsets, strict=True):
        total, count = wanted[name] - offset, 1
        while pools and pools[-1][0] / pools[-1][1] > total / count:
            before = pools.pop()
            total, count = total + before[0], count + before[1]
        pools.append((total, count))
    means = [total / count for total, count in pools for _ in range(count)]
    return {name: mean + offset for name, mean, offset in zip(column, means, offsets, strict=True)}


def _ports(ends: Sequence[tuple[str, float]], gap: float) -> list[float]:
    """Return how far from its box's middle each line meets it; lines of one box keep the order of their other ends."""
    offsets = [0.0] * len(ends)
    lines_of: dict[str, list[int]] = {}
    for line, (box, _) in enumerate(ends):
        lines_of.setdefault(box, []).append(line)
    for lines in lines_of.values():
        for place, line in enumerate(sorted(lines, key=lambda line: ends[line][1])):
            offsets[line] = (place - (len(lines) - 1) / 2) * gap
    return offsets


def _points(
    route: Sequence[str], boxes: Mapping[str, Placed], leaving: float, arriving: float
) -> tuple[tuple[float, float], ...]:
    """Return the corners of a line: it leaves a box at the right, and crosses the layers between level."""
    first, last = boxes[route[0]], boxes[route[-1]]
    between = [
        corner
        for bend in (boxes[name] for name in route[1:-1])
        for corner in ((bend.left, bend.middle), (bend.left + bend.width, bend.middle))
    ]
    return ((first.left + first.width, first.middle + leaving), *between, (last.left, last.middle + arriving))
