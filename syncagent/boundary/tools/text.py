"""Turn whatever a tool returned into text: always a text, never a crash. It knows no tool.

Text stays as it is; what JSON can say becomes JSON; everything else its plainest string form.
"""

import datetime
import decimal
import enum
import json
import os
import re
import types
import uuid
from collections import abc
from typing import Any, Callable, Dict, List, Optional, TypeVar, cast

import attrs

__all__ = ["MAX_DEPTH", "MAX_ITEMS", "clean", "to_text"]

#: What nests deeper is cut there; a list that holds itself ends here too.
MAX_DEPTH = 64
#: How many items of a value are shown, all levels together; an endless generator stops there.
MAX_ITEMS = 100_000

NOTHING = "(no output)"
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN = (decimal.Decimal, datetime.timedelta, uuid.UUID, complex, range, slice, type)

T = TypeVar("T")


def clean(value: T) -> T:
    """The same text, or the same JSON value, with U+FFFD for each lone surrogate: it can be encoded.

    A text without one is returned as it is.
    """
    return cast(T, _clean(value))


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value) if _SURROGATE.search(value) else value
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_clean(item) for item in value]
    return value


def to_text(value: Any, *, check: Optional[Callable[[], None]] = None) -> str:
    """A text for `value`, whatever it is; it can be encoded as UTF-8.

    A generator is run: texts are joined as they are, other items become a JSON list. `check` is
    called between its items and may raise, and what the generator itself raises passes through.
    """
    if value is None:
        return NOTHING
    if isinstance(value, abc.Iterator):
        value = _drain(value, check)
        if value and all(isinstance(item, str) for item in value):
            return clean("".join(value))
    try:
        plain = _Reducer().reduce(value, 0)
        text = plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)
    except MemoryError:
        raise
    except Exception:  # a hostile __iter__, __getattr__ or property of the value
        text = _safe_str(value)
    return clean(text)


def _drain(items: "abc.Iterator[Any]", check: Optional[Callable[[], None]]) -> List[Any]:
    taken: List[Any] = []
    size = 0
    try:
        for item in items:
            if check is not None:
                check()
            taken.append(item)
            size += len(item) if isinstance(item, (str, bytes)) else 1
            if len(taken) >= MAX_ITEMS or size >= 4_000_000:
                taken.append("… (cut: it goes on)")
                break
    finally:
        close = getattr(items, "close", None)
        if isinstance(items, types.GeneratorType) and close is not None:
            close()
    return taken


class _Reducer:
    """One value on its way to what `json.dumps` takes; counts the items it has shown."""

    def __init__(self) -> None:
        self.left = MAX_ITEMS
        self.open: List[int] = []  # ids of the containers we are inside of

    def reduce(self, value: Any, depth: int) -> Any:
        if value is None or type(value) in (bool, str):
            return value
        if isinstance(value, enum.Enum):
            return self.reduce(value.value, depth + 1) if depth < MAX_DEPTH else _safe_str(value)
        scalar = _scalar(value)
        if scalar is not None:
            return scalar
        if id(value) in self.open:
            return "… (itself)"
        if depth >= MAX_DEPTH:
            return "… (nested too deep)"
        self.open.append(id(value))
        try:
            return self._container(value, depth + 1)
        finally:
            self.open.pop()

    def _container(self, value: Any, depth: int) -> Any:
        fields = _fields(value)
        if fields is not None:
            return self._object(fields, depth)
        if isinstance(value, abc.Mapping):
            return self._object(value, depth)
        if isinstance(value, (abc.Set, set, frozenset)):
            # A set has no order of its own: sort, so that the same result gives the same text.
            return sorted(self._array(value, depth), key=lambda item: json.dumps(item, sort_keys=True))
        if isinstance(value, (abc.Sequence, abc.Iterator, abc.ValuesView)):
            return self._array(value, depth)
        return _safe_str(value)

    def _array(self, items: Any, depth: int) -> List[Any]:
        shown: List[Any] = []
        for item in items:
            if self.left <= 0:
                shown.append("… (cut)")
                break
            self.left -= 1
            shown.append(self.reduce(item, depth))
        return shown

    def _object(self, items: Any, depth: int) -> Dict[str, Any]:
        shown: Dict[str, Any] = {}
        for key in items:
            if self.left <= 0:
                shown["…"] = "(cut)"
                break
            self.left -= 1
            name = key if isinstance(key, str) else self.reduce(key, depth)
            shown[name if isinstance(name, str) else json.dumps(name)] = self.reduce(items[key], depth)
        return shown


def _scalar(value: Any) -> Any:
    """The JSON scalar for `value`, or None if it is none."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, float):
        # NaN and the infinities have no JSON form: they become texts.
        return float(value) if value - value == 0 else repr(float(value)).replace("nan", "NaN")
    if isinstance(value, int):
        return int(value) if value.bit_length() < 13_000 else hex(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).decode("utf-8", "replace")
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, os.PathLike):
        return os.fsdecode(os.fspath(value))
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {_safe_str(value)}"
    if isinstance(value, _PLAIN):
        return _safe_str(value)
    return None


def _fields(value: Any) -> Optional[Dict[str, Any]]:
    """The fields of an attrs object, a dataclass or a named tuple, or None."""
    if attrs.has(type(value)):
        names = [field.name for field in attrs.fields(type(value))]
    elif hasattr(type(value), "__dataclass_fields__"):
        names = list(type(value).__dataclass_fields__)
    elif isinstance(value, tuple) and hasattr(type(value), "_fields"):
        names = list(getattr(type(value), "_fields"))
    else:
        return None
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _safe_str(value: Any) -> str:
    try:
        return str(value)
    except Exception as exc:  # its own __str__ failed, or it nests deeper than the interpreter allows
        return f"<{type(value).__name__} object; str() of it raised {type(exc).__name__}>"
