"""The small language in which a test writes down what a model says. It knows no transport.

A script is an iterable with one entry for each request; an entry is what the model answers, one
item or a list of them:

    [
        ["Let me look.", call("bash", {"command": "ls"})],
        [reasoning("easy"), "There are ", hold("middle"), "three files.", usage(120, 9)],
        status(429, headers={"Retry-After": "0"}),
    ]

An item is a string (one piece of text), what the functions below return, a `Chunk`, or an
exception, which is raised. An entry may also be a function of the request that returns an entry.
Unless the script says how the answer finishes, it finishes as a provider's would.
"""

import json
import threading
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Union

import attrs

from syncagent.boundary.models.protocol import Chunk
from syncagent.testing.points import Point

__all__ = [
    "Item",
    "Script",
    "call",
    "cut",
    "data",
    "delay",
    "error",
    "finish",
    "headers",
    "hold",
    "raw",
    "reasoning",
    "stall",
    "status",
    "text",
    "usage",
]


@attrs.frozen(kw_only=True)
class Item:
    """One thing that a scripted model does; made by the functions of this module."""

    kind: str
    values: Mapping[str, Any] = attrs.field(factory=dict)


def text(*pieces: str) -> Item:
    """Text, streamed in these pieces."""
    return Item(kind="text", values={"pieces": pieces})


def reasoning(*pieces: str) -> Item:
    """Reasoning, streamed in these pieces."""
    return Item(kind="reasoning", values={"pieces": pieces})


def call(
    name: str, arguments: Union[Mapping[str, Any], str, None] = None, *, id: Optional[str] = None
) -> Item:
    """A tool call. `arguments` is a mapping, or the raw text; `id` is made up if None, and may be ""."""
    raw_text = arguments if isinstance(arguments, str) else json.dumps(dict(arguments or {}))
    return Item(kind="call", values={"name": name, "arguments": raw_text, "id": id})


def usage(input_tokens: int, output_tokens: int, **more: int) -> Item:
    """What the request cost."""
    return Item(
        kind="usage", values={"input_tokens": input_tokens, "output_tokens": output_tokens, **more}
    )


def finish(reason: Optional[str]) -> Item:
    """End the answer with this reason: "stop", "tool_calls", "max_tokens", or a provider's own word.

    None ends the stream without any, as a broken proxy does.
    """
    return Item(kind="finish", values={"reason": reason})


def stall() -> Item:
    """Say nothing more until the request is cancelled or its connection ends."""
    return Item(kind="stall")


def hold(name: str) -> Item:
    """Stop here until the test calls `release()` on the model's or server's `point(name)`."""
    return Item(kind="hold", values={"name": name})


def delay(seconds: float) -> Item:
    """Wait so long; a cancel or the end of the connection cuts it short."""
    return Item(kind="delay", values={"seconds": seconds})


def error(message: str, *, type: str = "server_error", code: Union[str, int, None] = None) -> Item:
    """An error object inside the stream, after a status of 200. Ends the answer."""
    return Item(kind="error", values={"error": {"message": message, "type": type, "code": code}})


def status(
    code: int,
    message: str = "scripted",
    *,
    headers: Optional[Mapping[str, str]] = None,
    body: Union[Mapping[str, Any], str, bytes, None] = None,
    type: Optional[str] = None,
) -> Item:
    """The whole answer is this HTTP status with a JSON error body, or with `body`."""
    if body is None:
        body = {"error": {"message": message, "type": type, "code": type}}
    return Item(kind="status", values={"code": code, "headers": dict(headers or {}), "body": body})


def cut(*, reset: bool = False) -> Item:
    """End the connection in the middle of the answer; `reset` with a TCP reset."""
    return Item(kind="cut", values={"reset": reset})


def headers(**more: str) -> Item:
    """Server only: send the status line and headers now, before anything is said."""
    return Item(kind="headers", values={name.replace("_", "-"): value for name, value in more.items()})


def data(value: Mapping[str, Any]) -> Item:
    """Server only: one event of the stream with this JSON object."""
    return Item(kind="data", values={"value": value})


def raw(content: bytes) -> Item:
    """Server only: these bytes of the body, as they are."""
    return Item(kind="raw", values={"content": content})


Piece = Union[str, Item, Chunk, BaseException]
Entry = Union[Piece, Sequence[Piece], Callable[[Any], Any]]


class Script:
    """A script that is being played: its next entry, and its named points. Thread-safe."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        if isinstance(entries, (str, Item, Chunk)):
            raise TypeError("a script is a list with one entry for each request")
        self._entries: Iterator[Entry] = iter(entries)
        self._lock = threading.Lock()
        self._points: Dict[str, Point] = {}
        self._calls = 0

    def next(self, request: Any) -> Optional[List[Piece]]:
        """The items that answer this request; None when the script has come to its end."""
        with self._lock:
            try:
                entry: Any = next(self._entries)
            except StopIteration:
                return None
        while callable(entry) and not isinstance(entry, (Item, Chunk, BaseException)):
            entry = entry(request)
        if isinstance(entry, (str, Item, Chunk, BaseException)):
            entry = [entry]
        return list(entry)

    def point(self, name: str) -> Point:
        """The point of that name, whether the script has come to it or not."""
        with self._lock:
            if name not in self._points:
                self._points[name] = Point(name)
            return self._points[name]

    def release_all(self) -> None:
        """Release every point that was asked for or reached."""
        with self._lock:
            points = list(self._points.values())
        for point in points:
            point.release()

    def call_id(self, item: Item) -> str:
        """The id of a call item: its own, or one that no other call of this script has."""
        if item.values["id"] is not None:
            return str(item.values["id"])
        with self._lock:
            self._calls += 1
            return f"call_{self._calls}"

    def chunks(self, item: Piece, index: int) -> Optional[List[Chunk]]:
        """The chunks of what a model says; None for an item that does something else.

        `index` is the number of calls that the answer has so far.
        """
        if isinstance(item, Chunk):
            return [item]
        if isinstance(item, str):
            return [Chunk(text=item)]
        if not isinstance(item, Item):
            return None
        if item.kind in ("text", "reasoning"):
            return [Chunk(kind=item.kind, text=piece) for piece in item.values["pieces"]]
        if item.kind == "call":
            head = Chunk(
                kind="tool_call", index=index, id=self.call_id(item), name=item.values["name"]
            )
            arguments = item.values["arguments"]
            return [head] + ([Chunk(kind="tool_call", index=index, text=arguments)] if arguments else [])
        return None
