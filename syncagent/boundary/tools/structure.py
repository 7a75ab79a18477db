"""Check one decoded argument against its annotation and make the value that the function gets.

Strict: "3" is no integer and neither is true. cattrs makes attrs objects and dataclasses; what JSON
itself can say is checked here, because cattrs converts where a model's mistake should be told.
"""

import datetime
import decimal
import enum
import functools
import inspect
import pathlib
import re
import uuid
from typing import Any, Callable, Dict, List, Tuple, get_args, get_origin

from syncagent.boundary.tools.annotations import (
    ARRAYS,
    OBJECTS,
    SETS,
    bare,
    class_fields,
    is_literal,
    is_typed_dict,
    is_union,
)

__all__ = ["Misfit", "structure"]

_JSON_WORDS = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    type(None): "null",
    dict: "an object",
    list: "an array",
}
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*\Z")


class Misfit(Exception):
    """A value that doesn't fit; `path` is where in the argument, outermost first."""

    def __init__(self, text: str, path: Tuple[Any, ...] = ()) -> None:
        super().__init__(text, path)
        self.text = text
        self.path = path

    def inside(self, key: Any) -> "Misfit":
        """The same misfit, seen from one level up."""
        return Misfit(self.text, (key, *self.path))

    def under(self, name: str) -> str:
        """The misfit in words, with its place in the argument `name`."""
        where = name
        for key in self.path:
            plain = isinstance(key, str) and _IDENTIFIER.match(key)
            where += f".{key}" if plain else f"[{key!r}]"
        return f"{where!r} {self.text}"


def structure(value: Any, annotation: Any) -> Any:
    """The value for a parameter of that annotation. Raises `Misfit`."""
    annotation = bare(annotation)
    if annotation is Any or annotation is object:
        return value
    if annotation in _PARSERS:
        return _PARSERS[annotation](value)
    if is_union(annotation):
        return _union(value, get_args(annotation))
    if is_literal(annotation):
        return _one_of(value, list(get_args(annotation)))
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        return _one_of(value, list(annotation))
    if class_fields(annotation) is not None:
        return _object_of(value, annotation)
    return _container(value, get_origin(annotation) or annotation, get_args(annotation))


def _word(value: Any) -> str:
    shown = repr(value)
    if isinstance(value, (dict, list)) or len(shown) > 60:
        return _JSON_WORDS.get(type(value), type(value).__name__)
    return {"True": "true", "False": "false", "None": "null"}.get(shown, shown)


def _expected(cls: Any, value: Any) -> Misfit:
    return Misfit(f"must be {_JSON_WORDS[cls]}, not {_word(value)}")


def _exactly(cls: Any) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not cls:  # not isinstance: a bool is no int
            raise _expected(cls, value)
        return value

    return parse


def _number(value: Any) -> float:
    if type(value) not in (int, float):
        raise _expected(float, value)
    try:
        return float(value)
    except OverflowError:
        raise Misfit("is out of range") from None


def _from_string(what: str, make: Callable[[str], Any]) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if type(value) is not str:
            raise _expected(str, value)
        try:
            return make(value)
        except (ValueError, ArithmeticError):
            raise Misfit(f"must be {what}, not {_word(value)}") from None

    return parse


def _moment(text: str) -> datetime.datetime:
    # fromisoformat takes a trailing Z only from 3.11 on.
    return datetime.datetime.fromisoformat(re.sub(r"[zZ]\Z", "+00:00", text))


_PARSERS: Dict[Any, Callable[[Any], Any]] = {
    str: _exactly(str),
    bool: _exactly(bool),
    int: _exactly(int),
    float: _number,
    None: _exactly(type(None)),
    type(None): _exactly(type(None)),
    datetime.datetime: _from_string("a date and time in ISO 8601 form", _moment),
    datetime.date: _from_string("a date in ISO 8601 form", datetime.date.fromisoformat),
    datetime.time: _from_string("a time in ISO 8601 form", datetime.time.fromisoformat),
    uuid.UUID: _from_string("a UUID", uuid.UUID),
    decimal.Decimal: _from_string("a decimal number in a string", decimal.Decimal),
    pathlib.Path: _from_string("a path", pathlib.Path),
}


def _union(value: Any, members: Tuple[Any, ...]) -> Any:
    if any(bare(member) is type(value) for member in members):
        members = (type(value),) if type(value) in (str, bool, int, float, type(None)) else members
    misfits: List[Misfit] = []
    for member in members:
        try:
            return structure(value, member)
        except Misfit as exc:
            misfits.append(exc)
    told = [exc for exc, member in zip(misfits, members) if bare(member) not in (None, type(None))]
    if len(told) == 1:
        raise told[0]
    deeper = [exc for exc in told if exc.path]
    if len(deeper) == 1:  # the only member whose outer shape fits
        raise deeper[0]
    raise Misfit("fits none of its types: it " + "; it ".join(dict.fromkeys(exc.text for exc in misfits)))


def _one_of(value: Any, members: List[Any]) -> Any:
    for member in members:
        plain = member.value if isinstance(member, enum.Enum) else member
        if type(plain) is type(value) and plain == value:  # 1 is neither true nor 1.0
            return member
    shown = [member.value if isinstance(member, enum.Enum) else member for member in members]
    raise Misfit(f"must be one of {', '.join(map(_word, shown))}, not {_word(value)}")


def _inside(key: Any, value: Any, annotation: Any) -> Any:
    try:
        return structure(value, annotation)
    except Misfit as exc:
        raise exc.inside(key) from None


def _container(value: Any, origin: Any, args: Tuple[Any, ...]) -> Any:
    if origin in OBJECTS:
        if type(value) is not dict:
            raise _expected(dict, value)
        item_type = args[1] if args else Any
        return {key: _inside(key, item, item_type) for key, item in value.items()}
    assert origin in ARRAYS or origin in SETS or origin is tuple, origin
    if type(value) is not list:
        raise _expected(list, value)
    if origin is tuple and args and not (len(args) == 2 and args[1] is Ellipsis):
        if len(value) != len(args):
            raise Misfit(f"must have {len(args)} items, not {len(value)}")
        return tuple(_inside(at, item, args[at]) for at, item in enumerate(value))
    items = [_inside(at, item, args[0] if args else Any) for at, item in enumerate(value)]
    if origin is tuple:
        return tuple(items)
    if origin in SETS:
        try:
            return frozenset(items) if origin is frozenset else set(items)
        except TypeError:
            raise Misfit("must not have arrays or objects as items") from None
    return items


def _object_of(value: Any, cls: Any) -> Any:
    if type(value) is not dict:
        raise _expected(dict, value)
    fields = class_fields(cls) or {}
    for key in value:
        if key not in fields:
            raise Misfit(f"has no field {key!r}; it takes {', '.join(map(repr, fields)) or 'none'}")
    for key, (_, required) in fields.items():
        if required and key not in value:
            raise Misfit(f"lacks the field {key!r}")
    done = {key: _inside(key, item, fields[key][0]) for key, item in value.items()}
    if is_typed_dict(cls):
        return done
    try:
        return _converter().structure(done, cls)
    except Exception as exc:  # a validator or converter of the class refused a value
        raise _refusal(exc) from None


@functools.lru_cache(maxsize=None)
def _converter() -> Any:
    """The cattrs converter, made when the first class is met: importing cattrs costs some 50 ms.

    Fields come to it checked and made already, so it passes each of them through.
    """
    import cattrs
    from cattrs.gen import make_dict_structure_fn

    converter = cattrs.Converter()
    passing = cattrs.Converter()
    passing.register_structure_hook_func(lambda _: True, lambda value, _: value)
    converter.register_structure_hook_factory(
        lambda cls: class_fields(cls) is not None,
        lambda cls: make_dict_structure_fn(cls, passing, _cattrs_use_alias=True),
    )
    return converter


def _refusal(exc: BaseException, path: Tuple[Any, ...] = ()) -> Misfit:
    """The innermost of cattrs's grouped errors, as a misfit."""
    from cattrs.errors import ClassValidationError

    if isinstance(exc, ClassValidationError):
        noted, plain = exc.group_exceptions()
        if noted:
            return _refusal(noted[0][0], (*path, noted[0][1].name))
        if plain:
            return _refusal(plain[0], path)
    return Misfit(f"is refused: {exc}", path)
