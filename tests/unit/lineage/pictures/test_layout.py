from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from snapline.lineage.pictures.layout import Layout, Size, layered

BOX = Size(100, 40)


def overlapping(sizes: dict[str, Size], found: Layout) -> list[tuple[str, str]]:
    def apart(one: str, other: str) -> bool:
        a, b = found.boxes[one], found.boxes[other]
        if a.left + a.width <= b.left or b.left + b.width <= a.left:
            return True
        return abs(a.middle - b.middle) >= (sizes[one].height + sizes[other].height) / 2 - 1e-6

    return [pair for pair in combinations(sizes, 2) if not apart(*pair)]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[dict[str, Size], list[tuple[str, str]]]:
    names = [f"n{number}" for number in range(draw(st.integers(1, 9)))]
    sizes = {name: Size(draw(st.integers(10, 300)), draw(st.integers(10, 90))) for name in names}
    return sizes, draw(st.lists(st.tuples(st.sampled_from(names), st.sampled_from(names)), max_size=20))


@given(graphs())
def test_no_box_covers_another_and_everything_is_inside(graph: tuple[dict[str, Size], list[tuple[str, str]]]) -> None:
    sizes, pairs = graph
    found = layered(sizes, pairs, 50)
    assert overlapping(sizes, found) == []
    for name, box in found.boxes.items():
        assert box.left >= 0
        assert box.left + box.width <= found.width + 1e-6
        assert box.middle - sizes[name].height / 2 >= -1e-6
        assert box.middle + sizes[name].height / 2 <= found.height + 1e-6
    assert len(found.lines) == len(pairs)


def test_every_line_of_a_graph_without_circles_goes_to_the_right() -> None:
    names = [f"n{number}" for number in range(8)]
    pairs = [(one, other) for one, other in combinations(names, 2)]
    found = layered(dict.fromkeys(names, BOX), pairs, 50)
    assert len({box.left for box in found.boxes.values()}) == 8
    for line in found.lines:
        assert [x for x, _ in line] == sorted(x for x, _ in line)


def test_a_line_that_passes_a_layer_goes_around_its_boxes() -> None:
    names = ["top", "middle", "bottom"]
    pairs = [("top", "middle"), ("middle", "bottom"), ("top", "bottom")]
    found = layered(dict.fromkeys(names, BOX), pairs, 50)
    passed = found.boxes["middle"]
    (corner, level) = found.lines[2][1:3]
    assert (corner[0], level[0]) == (passed.left, passed.left + passed.width)
    assert abs(corner[1] - passed.middle) >= BOX.height / 2
    assert corner[1] == level[1]


def test_lines_are_untangled_where_they_can_be() -> None:
    sizes = dict.fromkeys(["root", "a", "b", "of-b", "of-a"], BOX)
    found = layered(sizes, [("root", "a"), ("root", "b"), ("b", "of-b"), ("a", "of-a")], 50)
    assert (found.boxes["a"].middle < found.boxes["b"].middle) == (
        found.boxes["of-a"].middle < found.boxes["of-b"].middle
    )


def test_lines_of_one_box_start_and_end_apart() -> None:
    found = layered(dict.fromkeys(["a", "b", "c"], BOX), [("a", "b"), ("a", "c"), ("a", "c")], 50)
    assert len({line[0] for line in found.lines}) == 3
    assert len({line[-1] for line in found.lines}) == 3


def test_nothing_has_no_size() -> None:
    assert layered({}, [], 50) == Layout(0, 0, {}, ())
