"""Whatever a tool returns becomes a text that can be encoded, and nothing makes it crash."""

import collections
import dataclasses
import datetime
import decimal
import enum
import itertools
import json
import pathlib
import types
import uuid
from typing import Any, Iterator, List, NamedTuple

import attrs
import pytest

from syncagent.boundary.tools.text import MAX_DEPTH, MAX_ITEMS, clean, to_text


@attrs.frozen
class Point:
    x: int
    y: Any = None


@dataclasses.dataclass
class Line:
    points: List[Point]
    name: str = "l"


class Pair(NamedTuple):
    left: int
    right: int


class Colour(enum.Enum):
    RED = "red"


class Number(enum.IntEnum):
    ONE = 1


class Text(str):
    pass


class Hostile:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class HostileMapping(dict):  # type: ignore[type-arg]
    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        return "hostile mapping"


@pytest.mark.parametrize(
    "value, text",
    [
        ("as it is", "as it is"),
        ("", ""),
        (Text("sub"), "sub"),
        (None, "(no output)"),
        (True, "true"),
        (7, "7"),
        (1.5, "1.5"),
        (float("nan"), "NaN"),
        (float("-inf"), "-inf"),
        ({"a": [1, None, "x", float("nan")]}, '{"a": [1, null, "x", "NaN"]}'),
        ({3, 1, 2}, "[1, 2, 3]"),
        ({"b", 1, None}, '["b", 1, null]'),
        (frozenset(), "[]"),
        (b"bytes \xff", "bytes \ufffd"),
        (bytearray(b"ba"), "ba"),
        (memoryview(b"mv"), "mv"),
        (datetime.datetime(2024, 2, 3, 4, 5, tzinfo=datetime.timezone.utc), "2024-02-03T04:05:00+00:00"),
        (datetime.date(2024, 2, 3), "2024-02-03"),
        (datetime.time(4, 5), "04:05:00"),
        (datetime.timedelta(hours=1), "1:00:00"),
        (decimal.Decimal("1.10"), "1.10"),
        (decimal.Decimal("NaN"), "NaN"),
        (pathlib.PurePosixPath("/a/b"), "/a/b"),
        (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (1j, "1j"),
        (Colour.RED, "red"),
        (Number.ONE, "1"),
        (Point(1, Point(2)), '{"x": 1, "y": {"x": 2, "y": null}}'),
        (Line([Point(1)]), '{"points": [{"x": 1, "y": null}], "name": "l"}'),
        (Pair(1, 2), '{"left": 1, "right": 2}'),
        ((1, "b"), '[1, "b"]'),
        ({1: "a", (1, 2): "b"}, '{"1": "a", "[1, 2]": "b"}'),
        ({None: "c", Colour.RED: "d"}, '{"null": "c", "red": "d"}'),
        (collections.OrderedDict(a=1), '{"a": 1}'),
        (types.MappingProxyType({"a": 1}), '{"a": 1}'),
        (collections.deque([1, 2]), "[1, 2]"),
        ({"a": 1}.keys(), '["a"]'),
        ({"a": 1}.values(), "[1]"),
        (range(3), "range(0, 3)"),
        (ValueError("why"), "ValueError: why"),
        ([ValueError()], '["ValueError: "]'),
        ("größe 😀", "größe 😀"),
        ({"ä": "😀"}, '{"ä": "😀"}'),
        ("a\ud800b", "a\ufffdb"),
        ({"k\udc80": ["v\udfff"]}, '{"k\ufffd": ["v\ufffd"]}'),
        (Hostile(), "<Hostile object; str() of it raised RuntimeError>"),
        ([Hostile()], '["<Hostile object; str() of it raised RuntimeError>"]'),
        (HostileMapping(a=1), "hostile mapping"),
        (int, "<class 'int'>"),
    ],
)
def test_each_value_has_its_text(value: Any, text: str) -> None:
    assert to_text(value) == text


def endless() -> Iterator[int]:
    yield from itertools.count()


@pytest.mark.parametrize(
    "value, text",
    [
        ((piece for piece in ["a", "b\n", "c"]), "ab\nc"),
        ((number for number in range(3)), "[0, 1, 2]"),
        ((item for item in ["a", 1]), '["a", 1]'),
        (iter([]), "[]"),
        (map(str, [1, 2]), "12"),
        ([number for number in range(2)], "[0, 1]"),
        ({"rows": (number for number in range(2))}, '{"rows": [0, 1]}'),
    ],
)
def test_a_generator_is_run(value: Any, text: str) -> None:
    assert to_text(value) == text


def test_a_generator_without_end_is_cut() -> None:
    text = to_text(endless())
    assert json.loads(text)[:3] == [0, 1, 2]
    assert json.loads(text)[-1].startswith("… (cut")
    assert to_text(itertools.repeat("x" * 1000)).endswith("… (cut: it goes on)")
    assert '"… (cut)"' in to_text({"inner": endless()})


def test_a_generator_is_stopped_by_its_check_and_closed() -> None:
    closed = []

    def items() -> Iterator[int]:
        try:
            yield from range(100)
        finally:
            closed.append(True)

    class Stop(BaseException):
        pass

    def check() -> None:
        raise Stop

    with pytest.raises(Stop):
        to_text(items(), check=check)
    assert closed == [True]


def test_what_a_generator_raises_is_the_tool_s_error() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        to_text(items())


def test_a_value_that_holds_itself_ends() -> None:
    items: List[Any] = [1]
    items.append(items)
    assert to_text(items) == '[1, "… (itself)"]'
    table: Any = {"a": {}}
    table["a"]["b"] = table
    assert to_text(table) == '{"a": {"b": "… (itself)"}}'
    point = Point(1, items)
    items.append(point)
    assert "itself" in to_text(point)


def test_the_same_value_twice_is_no_circle() -> None:
    inner = [1]
    assert to_text([inner, inner]) == "[[1], [1]]"


def test_a_value_of_any_depth_is_cut() -> None:
    deep: List[Any] = []
    for _ in range(10**5):
        deep = [deep]
    text = to_text(deep)
    assert text == "[" * MAX_DEPTH + '"… (nested too deep)"' + "]" * MAX_DEPTH
    while deep:
        deep = deep.pop()


def test_a_value_of_any_width_is_cut() -> None:
    text = to_text([list(range(1000)) for _ in range(1000)])
    assert text.count(",") < 1.2 * MAX_ITEMS
    assert "… (cut)" in text
    assert '"…": "(cut)"' in to_text(dict.fromkeys(range(2 * MAX_ITEMS)))


def test_a_number_of_any_size_has_a_text() -> None:
    assert to_text(10**100_000).startswith("0x")
    assert to_text(2**64) == str(2**64)


def test_running_out_of_memory_is_not_hidden() -> None:
    class Huge(dict):  # type: ignore[type-arg]
        def __iter__(self) -> Iterator[Any]:
            raise MemoryError

    with pytest.raises(MemoryError):
        to_text(Huge(a=1))


def test_clean_leaves_what_is_clean_as_it_is() -> None:
    text = "x" * 100
    assert clean(text) is text
    assert clean([{"a\ud800": "\udfff"}, 1, None]) == [{"a\ufffd": "\ufffd"}, 1, None]
