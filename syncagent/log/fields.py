"""How a value of the log is read from JSON and written to it: readers, one codec, and `Message`.

It knows neither events nor their order. Pure.
"""

from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

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


class Malformed(ValueError):
    """What a reader finds wrong; the field's name is put before it."""


def is_visible(text: str) -> bool:
    """Whether the text holds a character that is not white space."""
    return bool(text) and not text.isspace()


# -- readers of JSON values ---------------------------------------------------------------------------


def integer(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise Malformed(f"is {brief(value)}, not a whole number of 0 or more")
    return value


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
        kind = string(block.get("type"))
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


def reason_object(value: Any) -> Dict[str, Any]:
    reason = mapping(value)
    one_of(REASONS)(reason.get("kind"))
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
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."


def json_field(reader: Reader, **kwargs: Any) -> Any:
    return attrs.field(metadata={"reader": reader}, **kwargs)


# -- one codec for every class ------------------------------------------------------------------------


def read_fields(cls: Any, data: Mapping[str, Any]) -> Dict[str, Any]:
    """The constructor's arguments; keys that the class doesn't know go to `extra` and survive."""
    values: Dict[str, Any] = {}
    extra = dict(data)
    for field in attrs.fields(cls):
        reader = field.metadata.get("reader")
        if reader is None:
            continue
        if field.name not in data:
            if field.default is attrs.NOTHING:
                raise Malformed(f"{field.name} is missing")
            continue
        try:
            value = reader(data[field.name])
        except Malformed as exc:
            raise Malformed(f"{field.name} {exc}") from None
        values[field.name] = value
        # What `write_fields` would leave out stays in `extra`, so that the JSON reads back equal.
        if field.default is attrs.NOTHING or value != field.default:
            del extra[field.name]
    values["extra"] = extra
    return values


def write_fields(value: Any) -> Dict[str, Any]:
    data: Dict[str, Any] = {}
    for field in attrs.fields(type(value)):
        if "reader" not in field.metadata:
            continue
        item = getattr(value, field.name)
        if field.default is not attrs.NOTHING and item == field.default:
            continue
        data[field.name] = item.to_dict() if isinstance(item, Message) else item
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
