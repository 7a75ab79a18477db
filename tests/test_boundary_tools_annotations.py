"""Annotations become JSON schemas, or an error that says which one has none."""

import dataclasses
import datetime
import decimal
import enum
import pathlib
import sys
import uuid
from typing import (
    Annotated,
    Any,
    Callable,
    Dict,
    FrozenSet,
    Iterable,
    List,
    Literal,
    Mapping,
    NewType,
    Optional,
    Sequence,
    Set,
    Tuple,
    TypedDict,
    Union,
)

import attrs
import pytest

from syncagent.boundary.tools.annotations import Schemas, UnsupportedAnnotation, class_fields, resolve

UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1


class Mixed(enum.Enum):
    A = 1
    B = object()


@attrs.define
class Point:
    x: int
    _y: float = 0.0
    made: int = attrs.field(init=False, default=1)


@dataclasses.dataclass
class Line:
    points: "List[Point]"
    label: Annotated[str, "What to call it"] = ""
    tags: List[str] = dataclasses.field(default_factory=list)


class Options(TypedDict, total=False):
    depth: int


@attrs.define
class Tree:
    name: str
    below: "List[Tree]" = attrs.Factory(list)


STRING = {"type": "string"}
INTEGER = {"type": "integer"}
POINT = {
    "type": "object",
    "properties": {"x": INTEGER, "y": {"type": "number"}},
    "required": ["x"],
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    "annotation, schema",
    [
        (Any, {}),
        (object, {}),
        (str, STRING),
        (int, INTEGER),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (list, {"type": "array", "items": {}}),
        (List[int], {"type": "array", "items": INTEGER}),
        (Sequence[str], {"type": "array", "items": STRING}),
        (Iterable[str], {"type": "array", "items": STRING}),
        (Set[int], {"type": "array", "items": INTEGER, "uniqueItems": True}),
        (FrozenSet[int], {"type": "array", "items": INTEGER, "uniqueItems": True}),
        (tuple, {"type": "array", "items": {}}),
        (Tuple[int, ...], {"type": "array", "items": INTEGER}),
        (Tuple[int, str], {"type": "array", "prefixItems": [INTEGER, STRING], "minItems": 2, "maxItems": 2}),
        (dict, {"type": "object", "additionalProperties": {}}),
        (Dict[str, int], {"type": "object", "additionalProperties": INTEGER}),
        (Mapping[str, Any], {"type": "object", "additionalProperties": {}}),
        (Optional[int], {"anyOf": [INTEGER, {"type": "null"}]}),
        (Union[int, str], {"anyOf": [INTEGER, STRING]}),
        (Literal["r", "w"], {"enum": ["r", "w"], "type": "string"}),
        (Literal["r", 1, None], {"enum": ["r", 1, None]}),
        (Colour, {"enum": ["red", "blue"], "type": "string"}),
        (Level, {"enum": [1], "type": "integer"}),
        (UserId, INTEGER),
        (Annotated[int, "how many"], {"type": "integer", "description": "how many"}),
        (Annotated[int, 5, "how many"], {"type": "integer", "description": "how many"}),
        (datetime.datetime, {"type": "string", "format": "date-time"}),
        (datetime.date, {"type": "string", "format": "date"}),
        (datetime.time, {"type": "string", "format": "time"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (decimal.Decimal, STRING),
        (pathlib.Path, STRING),
        (Point, POINT),
        (
            Line,
            {
                "type": "object",
                "properties": {
                    "points": {"type": "array", "items": POINT},
                    "label": {"type": "string", "description": "What to call it"},
                    "tags": {"type": "array", "items": STRING},
                },
                "required": ["points"],
                "additionalProperties": False,
            },
        ),
        (
            Options,
            {
                "type": "object",
                "properties": {"depth": INTEGER},
                "required": [],
                "additionalProperties": False,
            },
        ),
    ],
)
def test_each_annotation_has_its_schema(annotation: Any, schema: Any) -> None:
    schemas = Schemas()
    assert schemas.of(annotation) == schema
    assert schemas.definitions == {}


@pytest.mark.skipif(sys.version_info < (3, 10), reason="new syntax")
def test_a_union_with_a_bar_is_a_union() -> None:
    assert Schemas().of(eval("int | None")) == {"anyOf": [INTEGER, {"type": "null"}]}


def test_the_standard_generics_are_taken() -> None:
    assert Schemas().of(list[int]) == {"type": "array", "items": INTEGER}
    assert Schemas().of(dict[str, tuple[int, ...]])["additionalProperties"]["items"] == INTEGER


def test_a_class_that_holds_itself_is_a_reference() -> None:
    schemas = Schemas()
    reference = {"$ref": "#/$defs/Tree"}
    assert schemas.of(Optional[Tree]) == {"anyOf": [reference, {"type": "null"}]}
    assert schemas.definitions["Tree"]["properties"]["below"] == {"type": "array", "items": reference}
    assert schemas.of(Tree) == reference


def test_two_classes_of_one_name_are_two_references() -> None:
    other = attrs.make_class("Tree", {"above": attrs.field(type=Any)})
    other.__annotations__ = {"above": Optional[other]}
    attrs.resolve_types(other)
    schemas = Schemas()
    assert schemas.of(Tree) == {"$ref": "#/$defs/Tree"}
    assert schemas.of(other) == {"$ref": "#/$defs/Tree_2"} == schemas.of(other)
    assert list(schemas.definitions["Tree_2"]["properties"]) == ["above"]
    assert list(schemas.definitions["Tree"]["properties"]) != ["above"]


@pytest.mark.parametrize("annotation", [bytes, complex, Callable[[], int], Dict[int, str], Mixed, type, 3])
def test_what_json_cannot_say_is_refused(annotation: Any) -> None:
    with pytest.raises(UnsupportedAnnotation):
        Schemas().of(annotation)


def test_required_and_not_required_are_seen() -> None:
    extensions = pytest.importorskip("typing_extensions")

    class Mixture(extensions.TypedDict):  # type: ignore[name-defined,misc]
        a: int
        b: extensions.NotRequired[str]

    assert class_fields(Mixture) == {"a": (int, True), "b": (extensions.NotRequired[str], False)}
    assert Schemas().of(Mixture)["properties"]["b"] == STRING


def test_annotations_in_texts_are_resolved_where_the_function_was_made() -> None:
    class Inner:
        pass

    def function(a: "Inner", b: "List[Point]") -> None:
        return Inner and None

    hints = function.__annotations__
    assert resolve(function, hints["a"], "a") is Inner
    assert resolve(function, hints["b"], "b") == List[Point]
    with pytest.raises(TypeError, match="parameter 'c': can't resolve its annotation"):
        resolve(function, "NoSuchName", "parameter 'c'")
