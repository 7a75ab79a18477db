"""How a value of the log is read from JSON and written to it: readers, one codec, and `Message`.

It knows neither events nor their order. Pure.
"""

import functools
import json
import math
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

import attrs

__all__ = ["Malformed", "Message", "is_visible", "read_fields", "write_fields"]

#: Turns a JSON value into a field's value, or raises `Malformed`.
Reader = Callable[[Any], Any]

TARGETS = ("next_turn", "next_step")
OUTCOMES = ("claimed", "canceled", "replaced")
EFFECTS = ("read", "idempotent", "write")
DECISIONS = ("allowed", "rejected", "cancelled", "unavailable")
REASONS = ("completed", "max_tokens", "blocked", "error", "aborted", "interrupted")
CHUNK_KINDS = ("text", "reasoning", "tool_call")
#: The largest number of an event, turn or step, and the latest time: what 64 bits hold.
LARGEST = 2**63 - 1
#: How many objects and lists may stand in one another in an event's data.
DEEPEST = 200


class Malformed(ValueError):
    """What a reader finds wrong; the field's name is put before it."""


def is_visible(text: str) -> bool:
    """Whether the text holds a character that is not white space."""
    return bool(text) and not text.isspace()


# -- readers of JSON values ---------------------------------------------------------------------------


def integer(value: Any) -> int:
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise Malformed(f"is {brief(value)}, not a whole number from 0 to {LARGEST}")
    return value


def number(value: Any) -> float:
    if type(value) not in (int, float) or not 0 <= value <= LARGEST:
        raise Malformed(f"is {brief(value)}, not a number from 0 up")
    return float(value)


def string(value: Any) -> str:
    if not isinstance(value, str):
        raise Malformed(f"is {brief(value)}, not a string")
    return value


def truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Malformed(f"is {brief(value)}, not true or false")
    return value


def mapping(value: Any) -> Dict[str, Any]:
    if not isinstance(value, dict):
        raise Malformed(f"is {brief(value)}, not an object")
    return value


def objects(value: Any) -> List[Dict[str, Any]]:
    if not isinstance(value, list):
        raise Malformed(f"is {brief(value)}, not a list")
    return [mapping(item) for item in value]


def values(value: Any) -> List[Any]:
    if not isinstance(value, list):
        raise Malformed(f"is {brief(value)}, not a list")
    return value


def strings(value: Any) -> List[str]:
    if not isinstance(value, list):
        raise Malformed(f"is {brief(value)}, not a list")
    return [string(item) for item in value]


def optional(reader: Reader) -> Reader:
    return lambda value: None if value is None else reader(value)


def one_of(words: Sequence[str]) -> Reader:
    def read(value: Any) -> Any:
        if value not in words:
            raise Malformed(f"is {brief(value)}, not one of {', '.join(words)}")
        return value

    return read


def blocks(value: Any) -> List[Dict[str, Any]]:
    blocks = objects(value)
    for block in blocks:
        kind = block.get("type")
        if not isinstance(kind, str):
            raise Malformed("has a block whose type is not a string")
        needed = {"text": ("text",), "reasoning": ("text",), "tool_call": ("id", "name", "arguments")}
        for key in needed.get(kind, ()):
            if not isinstance(block.get(key), str):
                raise Malformed(f"has a {kind} block whose {key} is not a string")
    return blocks


def error_object(value: Any) -> Dict[str, Any]:
    error = mapping(value)
    if not isinstance(error.get("code"), str):
        raise Malformed("has no code")
    return error


def ending(value: Any) -> Any:
    """A child's ending, a word or an object with `kind`. Unknown words are read: they mean a failure."""
    return value if isinstance(value, str) else mapping_with_kind(value)


def mapping_with_kind(value: Any) -> Dict[str, Any]:
    found = mapping(value)
    if not isinstance(found.get("kind"), str):
        raise Malformed("has no kind")
    return found


def reason_object(value: Any) -> Dict[str, Any]:
    reason = mapping_with_kind(value)
    one_of(REASONS)(reason["kind"])
    if reason.get("error") is not None:
        error_object(reason["error"])
    return reason


def chunk_object(value: Any) -> Dict[str, Any]:
    chunk = mapping(value)
    one_of(CHUNK_KINDS)(chunk.get("kind"))
    string(chunk.get("text"))
    if chunk.get("usage") is not None:
        mapping(chunk["usage"])
    return chunk


def message_object(value: Any) -> "Message":
    return Message.from_dict(mapping(value))


def brief(value: Any) -> str:
    try:
        text = repr(value)
    except Exception:  # a number too long to print, an object nested too deep
        text = f"a {type(value).__name__}"
    return text if len(text) <= 40 else text[:37] + "..."


def json_field(reader: Reader, *, always: bool = False, **kwargs: Any) -> Any:
    """A field that is in the JSON. One that equals its default is left out, unless it is `always`
    written; where that one is missing in what is read, it is None.
    """
    return attrs.field(metadata={"reader": reader, "always": always}, **kwargs)


# -- text ---------------------------------------------------------------------------------------------


def encode(data: Any) -> str:
    """The JSON text of `data`. Raises `TypeError`, `ValueError` or `RecursionError` if it has none."""
    text = _ENCODER.encode(data)
    text.encode("utf-8")  # half a surrogate pair is no text
    _check_depth(text, data)
    return text


def plain_chunk(turn: Any, step: Any, attempt: Any, chunk: Mapping[str, Any]) -> Optional[str]:
    """The JSON text of a chunk event that has nothing but a kind and a text; None for any other.

    There are very many of them, and what is written here reads back equal by its form.
    """
    if list(chunk) != ["kind", "text"] or type(chunk["text"]) is not str or chunk["kind"] not in CHUNK_KINDS:
        return None
    for number in (turn, step, attempt):
        if type(number) is not int or not 0 <= number <= LARGEST:
            return None
    try:
        chunk["text"].encode("utf-8")
    except UnicodeEncodeError:
        return None
    return _PLAIN % (turn, step, attempt, chunk["kind"], _ENCODER.encode(chunk["text"]))


def decode(text: str) -> Any:
    """The value of a JSON text. Raises `ValueError` or `RecursionError` unless `encode` could write it."""
    value = _DECODER.decode(text)
    if "\\ud" in text or "\\uD" in text:
        encode(value)
    _check_depth(text, value)
    return value


def _check_depth(text: str, value: Any) -> None:
    # How deep the standard library can read depends on the interpreter and on how deep its caller
    # stands, so what one thread could write another could not read.
    if text.count("[") + text.count("{") <= DEEPEST:
        return
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"it is nested deeper than {DEEPEST} levels")
        inner: List[Any] = []
        for item in level:
            inner.extend(item.values() if isinstance(item, dict) else item)
        level = [item for item in inner if isinstance(item, (dict, list))]


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of JSON")
    return number


# Made once: `json.dumps` makes one for each call where it isn't the default, a fifth of the cost.
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_PLAIN = '{"turn":%d,"step":%d,"attempt":%d,"chunk":{"kind":"%s","text":%s}}'
# The reader of the standard library takes NaN, Infinity and 1e999, which no writer gives back.
_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)

# -- one codec for every class ------------------------------------------------------------------------


@attrs.frozen
class _Spec:
    """What the codec needs of one field; looking it up in attrs each time costs more than the work."""

    name: str
    reader: Reader
    always: bool
    default: Any  # attrs.NOTHING: it is required


@functools.lru_cache(maxsize=None)
def _specs(cls: Any) -> Tuple[_Spec, ...]:
    fields = [field for field in attrs.fields(cls) if "reader" in field.metadata]
    return tuple(_Spec(f.name, f.metadata["reader"], f.metadata["always"], f.default) for f in fields)


def read_fields(cls: Any, data: Mapping[str, Any]) -> Dict[str, Any]:
    """The constructor's arguments; keys that the class doesn't know go to `extra` and survive."""
    values: Dict[str, Any] = {}
    extra = dict(data)
    for spec in _specs(cls):
        name = spec.name
        if name not in data:
            if spec.default is attrs.NOTHING:
                raise Malformed(f"{name} is missing")
            if spec.always:
                values[name] = None
            continue
        try:
            value = values[name] = spec.reader(data[name])
        except Malformed as exc:
            raise Malformed(f"{name} {exc}") from None
        # What `write_fields` would leave out stays in `extra`, so that the JSON reads back equal.
        if spec.always or spec.default is attrs.NOTHING or value != spec.default:
            del extra[name]
    values["extra"] = extra
    return values


def write_fields(value: Any) -> Dict[str, Any]:
    data: Dict[str, Any] = {}
    cls: Any = type(value)
    for spec in _specs(cls):
        item = getattr(value, spec.name)
        if item == (None if spec.always else spec.default):
            continue
        data[spec.name] = item.to_dict() if isinstance(item, Message) else item
    data.update(value.extra)
    return data


@attrs.frozen(kw_only=True)
class Message:
    """What a user, the model or a tool said: `content` is a list of blocks.

    `{"type": "text" | "reasoning", "text"}`, `{"type": "tool_call", "id", "name", "arguments"}` with
    the raw text of the arguments, and in a tool's message, which only `derive_messages` makes,
    `{"type": "tool_result", "call_id", "content", "is_error"}`. `source` says who wrote a user's
    message if it was not the user.
    """

    id: str = json_field(string)
    role: str = json_field(one_of(("user", "assistant", "tool")))
    content: List[Dict[str, Any]] = json_field(blocks)
    source: Optional[str] = json_field(optional(string), default=None)
    extra: Dict[str, Any] = attrs.field(factory=dict, repr=False)

    @property
    def text(self) -> str:
        """The text blocks, joined."""
        return "".join(block["text"] for block in self.content if block.get("type") == "text")

    @property
    def calls(self) -> List[Dict[str, Any]]:
        """The `tool_call` blocks, in the model's order."""
        return [block for block in self.content if block.get("type") == "tool_call"]

    @property
    def visible(self) -> bool:
        """Whether a text or reasoning block holds a character that is not white space."""
        return any(
            is_visible(block["text"]) for block in self.content if block.get("type") in ("text", "reasoning")
        )

    def to_dict(self) -> Dict[str, Any]:
        return write_fields(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Message":
        return cls(**read_fields(cls, data))
