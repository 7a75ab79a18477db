"""The JSON schema of one annotation. It knows types and no function.

Structuring, in the module beside this one, takes the same annotations and refuses the same ones.
"""

import datetime
import decimal
import enum
import inspect
import pathlib
import typing
import uuid
from collections import abc
from typing import Any, Callable, Dict, List, Optional, Set, Tuple, Union, get_args, get_origin

import attrs

__all__ = [
    "ARRAYS",
    "OBJECTS",
    "SETS",
    "Schemas",
    "UnsupportedAnnotation",
    "bare",
    "class_fields",
    "is_literal",
    "is_typed_dict",
    "is_union",
    "resolve",
]

#: Scalars that JSON carries as they are, or as a string.
SCALARS: Tuple[Tuple[Any, Dict[str, Any]], ...] = (
    (str, {"type": "string"}),
    (bool, {"type": "boolean"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (type(None), {"type": "null"}),
    (datetime.datetime, {"type": "string", "format": "date-time"}),
    (datetime.date, {"type": "string", "format": "date"}),
    (datetime.time, {"type": "string", "format": "time"}),
    (uuid.UUID, {"type": "string", "format": "uuid"}),
    (decimal.Decimal, {"type": "string"}),
    (pathlib.Path, {"type": "string"}),
)
ARRAYS: Tuple[Any, ...] = (list, abc.Sequence, abc.Iterable, abc.Collection)
SETS: Tuple[Any, ...] = (set, frozenset, abc.Set, abc.MutableSet)
OBJECTS: Tuple[Any, ...] = (dict, abc.Mapping, abc.MutableMapping)


class UnsupportedAnnotation(Exception):
    """An annotation that no JSON schema is made for; its text says which."""


def resolve(function: Callable[..., Any], annotation: Any, where: str) -> Any:
    """The annotation itself where it is given as a string. Raises `TypeError` for an unknown name."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    if not callable(function) or inspect.isclass(function):
        return annotation
    namespace = dict(getattr(function, "__globals__", {}))
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    for name, cell in zip(code.co_freevars if code else (), cells or ()):
        try:
            namespace[name] = cell.cell_contents
        except ValueError:
            pass  # the cell is empty still
    holder = type("_Holder", (), {"__annotations__": {"it": annotation}})
    try:
        # get_type_hints also resolves strings inside, such as List["Point"].
        hints = typing.get_type_hints(holder, globalns=namespace, localns=namespace, include_extras=True)
    except Exception as exc:
        raise TypeError(f"{where}: can't resolve its annotation {annotation!r}: {exc}") from None
    return hints["it"]


def bare(annotation: Any) -> Any:
    """The annotation without Annotated, NewType, Required, NotRequired and ReadOnly around it."""
    while True:
        if hasattr(annotation, "__metadata__"):
            annotation = annotation.__origin__
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif getattr(get_origin(annotation), "_name", "") in ("Required", "NotRequired", "ReadOnly"):
            annotation = get_args(annotation)[0]
        else:
            return annotation


def is_union(annotation: Any) -> bool:
    """Whether it is a Union, an Optional or, from 3.10, `X | Y`."""
    origin = get_origin(annotation)
    return origin is Union or type(annotation).__name__ == "UnionType"


def is_literal(annotation: Any) -> bool:
    """Whether it is a Literal of typing or of typing_extensions."""
    return getattr(get_origin(annotation), "_name", "") == "Literal"


def is_typed_dict(annotation: Any) -> bool:
    """Whether it is a TypedDict of typing or of typing_extensions."""
    return inspect.isclass(annotation) and hasattr(annotation, "__total__") and issubclass(annotation, dict)


def class_fields(cls: Any) -> Optional[Dict[str, Tuple[Any, bool]]]:
    """The fields of a dataclass, attrs class or TypedDict: name to (annotation, required); else None.

    A field that the constructor doesn't take is left out; the name is the constructor's.
    """
    if not inspect.isclass(cls):
        return None
    if is_typed_dict(cls):
        hints = _hints(cls)
        required: Any = getattr(cls, "__required_keys__", frozenset(hints))
        return {name: (hint, _is_required(hint, name in required)) for name, hint in hints.items()}
    if attrs.has(cls):
        hints = _hints(cls)
        return {
            field.alias or field.name: (hints.get(field.name, Any), field.default is attrs.NOTHING)
            for field in attrs.fields(cls)
            if field.init
        }
    if hasattr(cls, "__dataclass_fields__"):
        import dataclasses

        hints = _hints(cls)
        return {
            field.name: (
                hints[field.name],
                field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING,
            )
            for field in dataclasses.fields(cls)
            if field.init
        }
    return None


def _is_required(hint: Any, default: bool) -> bool:
    # Under `from __future__ import annotations` old versions can't see it from the class itself.
    name = getattr(get_origin(hint), "_name", "")
    return True if name == "Required" else False if name == "NotRequired" else default


def _hints(cls: Any) -> Dict[str, Any]:
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except Exception as exc:
        raise UnsupportedAnnotation(f"can't resolve the annotations of {cls!r}: {exc}") from None


class Schemas:
    """Schemas of annotations that share one table of `definitions`, for classes that hold themselves."""

    def __init__(self) -> None:
        self.definitions: Dict[str, Any] = {}
        self._open: List[Any] = []
        self._recursive: Set[Any] = set()
        self._names: Dict[str, Any] = {}

    def of(self, annotation: Any) -> Dict[str, Any]:
        """The schema of one annotation. Raises `UnsupportedAnnotation`."""
        schema = self._of_bare(bare(annotation))
        for text in _annotated_texts(annotation):
            schema = {**schema, "description": text}
        return schema

    def _of_bare(self, annotation: Any) -> Dict[str, Any]:
        if annotation is Any or annotation is object:
            return {}
        for cls, schema in SCALARS:
            if annotation is cls or annotation is None and cls is type(None):
                return dict(schema)
        if is_union(annotation):
            return {"anyOf": [self.of(member) for member in get_args(annotation)]}
        if is_literal(annotation):
            return _enumeration(list(get_args(annotation)), annotation)
        if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
            return _enumeration([member.value for member in annotation], annotation)
        if class_fields(annotation) is not None:
            return self._of_class(annotation)
        return self._of_container(annotation)

    def _of_container(self, annotation: Any) -> Dict[str, Any]:
        origin, args = get_origin(annotation) or annotation, get_args(annotation)
        if origin in ARRAYS:
            return {"type": "array", "items": self.of(args[0] if args else Any)}
        if origin in SETS:
            return {"type": "array", "items": self.of(args[0] if args else Any), "uniqueItems": True}
        if origin is tuple:
            return self._of_tuple(args)
        if origin in OBJECTS:
            if args and bare(args[0]) not in (str, Any):
                raise UnsupportedAnnotation(f"{annotation!r}: the keys of a JSON object are strings")
            return {"type": "object", "additionalProperties": self.of(args[1]) if args else {}}
        raise UnsupportedAnnotation(f"{annotation!r} has no JSON schema")

    def _of_tuple(self, args: Tuple[Any, ...]) -> Dict[str, Any]:
        if not args:
            return {"type": "array", "items": {}}
        if len(args) == 2 and args[1] is Ellipsis:
            return {"type": "array", "items": self.of(args[0])}
        items = [self.of(arg) for arg in args]
        return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}

    def _of_class(self, cls: Any) -> Dict[str, Any]:
        name = self._name_of(cls)
        reference = {"$ref": f"#/$defs/{name}"}
        if cls in self._open:
            self._recursive.add(cls)
            return reference
        self._open.append(cls)
        try:
            fields = class_fields(cls) or {}
            schema = {
                "type": "object",
                "properties": {name: self.of(hint) for name, (hint, _) in fields.items()},
                "required": [name for name, (_, required) in fields.items() if required],
                "additionalProperties": False,
            }
        finally:
            self._open.pop()
        if cls not in self._recursive:
            return schema
        self.definitions[name] = schema
        return reference

    def _name_of(self, cls: Any) -> str:
        """The class's name, with a number where another class of that name was met before."""
        name, number = cls.__name__, 2
        while self._names.setdefault(name, cls) is not cls:
            name, number = f"{cls.__name__}_{number}", number + 1
        return str(name)


def _annotated_texts(annotation: Any) -> List[str]:
    return [text for text in getattr(annotation, "__metadata__", ()) if isinstance(text, str)]


def _enumeration(values: List[Any], annotation: Any) -> Dict[str, Any]:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
    plain = [value.value if isinstance(value, enum.Enum) else value for value in values]
    if any(type(value) not in names for value in plain):
        raise UnsupportedAnnotation(f"{annotation!r} has values that JSON can't say")
    kinds = {names[type(value)] for value in plain}
    schema: Dict[str, Any] = {"enum": plain}
    if len(kinds) == 1:
        schema["type"] = kinds.pop()
    return schema
