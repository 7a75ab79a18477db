"""Arguments are checked strictly, and a misfit says where it is and what was wanted."""

import dataclasses
import datetime
import decimal
import enum
import pathlib
import uuid
from typing import Any, Dict, FrozenSet, List, Literal, Optional, Sequence, Set, Tuple, TypedDict, Union

import attrs
import pytest

from syncagent.boundary.tools.structure import Misfit, structure


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@attrs.define
class Point:
    x: int
    _y: float = 0.0
    below: "List[Point]" = attrs.Factory(list)


@dataclasses.dataclass
class Line:
    points: List[Point]
    end: Optional[Point] = None
    label: str = ""


@attrs.frozen
class Even:
    n: int = attrs.field()

    @n.validator
    def _check(self, attribute: Any, value: int) -> None:
        if value % 2:
            raise ValueError("n must be even")


class Options(TypedDict, total=False):
    depth: int


UTC = datetime.timezone.utc


@pytest.mark.parametrize(
    "value, annotation, made",
    [
        ("x", str, "x"),
        (3, int, 3),
        (3, float, 3.0),
        (3.5, float, 3.5),
        (True, bool, True),
        (None, None, None),
        ({"a": [1]}, Any, {"a": [1]}),
        ([1, 2], List[int], [1, 2]),
        ([1, "x"], list, [1, "x"]),
        (["a"], Sequence[str], ["a"]),
        ([1, 1, 2], Set[int], {1, 2}),
        ([1], FrozenSet[int], frozenset([1])),
        ([1, "x"], Tuple[int, str], (1, "x")),
        ([1, 2, 3], Tuple[int, ...], (1, 2, 3)),
        ([1], tuple, (1,)),
        ({"a": 1}, Dict[str, int], {"a": 1}),
        ({"a": 1}, dict, {"a": 1}),
        (None, Optional[int], None),
        (3, Optional[int], 3),
        ("x", Union[int, str], "x"),
        (1, Union[float, int], 1),
        (True, Union[int, bool], True),
        ({"x": 1}, Union[str, Point], Point(1)),
        ("w", Literal["r", "w"], "w"),
        ("red", Colour, Colour.RED),
        ({"x": 1, "y": 2}, Point, Point(1, 2.0)),
        ({"x": 1, "below": [{"x": 2, "below": []}]}, Point, Point(1, 0.0, [Point(2)])),
        ({"points": [{"x": 1}], "end": {"x": 2}}, Line, Line([Point(1)], Point(2))),
        ({"points": [], "end": None, "label": "l"}, Line, Line([], None, "l")),
        ({"depth": 1}, Options, {"depth": 1}),
        ({}, Options, {}),
        ({"n": 2}, Even, Even(2)),
        ("2024-02-03T04:05:06Z", datetime.datetime, datetime.datetime(2024, 2, 3, 4, 5, 6, tzinfo=UTC)),
        ("2024-02-03", datetime.date, datetime.date(2024, 2, 3)),
        ("04:05", datetime.time, datetime.time(4, 5)),
        ("1.10", decimal.Decimal, decimal.Decimal("1.10")),
        ("/a", pathlib.Path, pathlib.Path("/a")),
        (str(uuid.UUID(int=1)), uuid.UUID, uuid.UUID(int=1)),
    ],
)
def test_what_fits_is_made(value: Any, annotation: Any, made: Any) -> None:
    got = structure(value, annotation)
    assert got == made
    assert type(got) is type(made)


@pytest.mark.parametrize(
    "value, annotation, text",
    [
        ("3", int, "'a' must be an integer, not '3'"),
        (True, int, "'a' must be an integer, not true"),
        (3.0, int, "'a' must be an integer, not 3.0"),
        (1, bool, "'a' must be a boolean, not 1"),
        ("yes", bool, "'a' must be a boolean, not 'yes'"),
        (True, float, "'a' must be a number, not true"),
        ("1.5", float, "'a' must be a number, not '1.5'"),
        (10**400, float, "'a' is out of range"),
        (1, str, "'a' must be a string, not 1"),
        (None, str, "'a' must be a string, not null"),
        ("x" * 100, int, "'a' must be an integer, not a string"),
        ({}, list, "'a' must be an array, not an object"),
        ("abc", List[str], "'a' must be an array, not 'abc'"),
        (["b", 1], List[str], "'a[1]' must be a string, not 1"),
        ([[1], ["x"]], List[List[int]], "'a[1][0]' must be an integer, not 'x'"),
        ({"k": "x"}, Dict[str, int], "'a.k' must be an integer, not 'x'"),
        ({"a b": "x"}, Dict[str, int], "\"a['a b']\" must be an integer, not 'x'"),
        ([], dict, "'a' must be an object, not an array"),
        ([1], Tuple[int, str], "'a' must have 2 items, not 1"),
        ([[1]], Set[list], "'a' must not have arrays or objects as items"),
        ("x", Optional[int], "'a' must be an integer, not 'x'"),
        ([], Union[int, str], "'a' fits none of its types: it must be an integer, not an array; it must be"),
        ({"x": "1"}, Union[str, Point], "'a.x' must be an integer, not '1'"),
        ("x", Literal["r", "w"], "'a' must be one of 'r', 'w', not 'x'"),
        (True, Literal[1], "'a' must be one of 1, not true"),
        ("RED", Colour, "'a' must be one of 'red', 'blue', not 'RED'"),
        ({}, Point, "'a' lacks the field 'x'"),
        ({"x": 1, "z": 1}, Point, "'a' has no field 'z'; it takes 'x', 'y', 'below'"),
        ({"x": 1, "below": [{"x": 1}, {"x": True}]}, Point, "'a.below[1].x' must be an integer, not true"),
        ("x", Point, "'a' must be an object, not 'x'"),
        ({"n": 3}, Even, "'a' is refused: n must be even"),
        ({"depth": "x"}, Options, "'a.depth' must be an integer"),
        ({"deep": 1}, Options, "'a' has no field 'deep'"),
        ("yesterday", datetime.date, "'a' must be a date in ISO 8601 form, not 'yesterday'"),
        (5, datetime.date, "'a' must be a string, not 5"),
        ("x", decimal.Decimal, "'a' must be a decimal number"),
    ],
)
def test_what_does_not_fit_says_where_and_why(value: Any, annotation: Any, text: str) -> None:
    with pytest.raises(Misfit) as caught:
        structure(value, annotation)
    assert caught.value.under("a").startswith(text)
