"""A model without a network: it plays a script. It knows the Model protocol and no session."""

import threading
from typing import Any, Iterable, Iterator, List, Mapping, Optional

from syncagent.boundary.models.pairing import check_pairing
from syncagent.boundary.models.protocol import Chunk, ModelRequest
from syncagent.cancel import CancellationToken
from syncagent.errors import ModelError
from syncagent.testing.points import PATIENCE, Point
from syncagent.testing.script import Entry, Item, Piece, Script

__all__ = ["ScriptedModel"]


class ScriptedModel:
    """A `Model` that answers each request with the next entry of its script.

        model = ScriptedModel([
            ["Let me look.", call("bash", {"command": "ls"})],
            ["Two files.", hold("before the end"), usage(100, 5)],
        ])

    `requests` lists the requests that it got. A retry is a request like any other. With `strict`,
    the default, a transcript whose calls and results don't pair up is refused. When the script is
    at its end, a request fails with a `ModelError` of the code "script_ended". One model can be
    used by several threads: entries are handed out in the order of the requests.
    """

    def __init__(
        self,
        script: Iterable[Entry],
        *,
        name: str = "scripted",
        provider: str = "scripted",
        params: Optional[Mapping[str, Any]] = None,
        strict: bool = True,
        max_retries: int = 5,
        retry_after_output: bool = False,
    ) -> None:
        self.name = name
        self.provider = provider
        self.params = dict(params or {})
        self.max_retries = max_retries
        self.retry_after_output = retry_after_output
        self.requests: List[ModelRequest] = []
        self._strict = strict
        self._script = Script(script)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<ScriptedModel {self.name!r}, {len(self.requests)} requests>"

    def point(self, name: str) -> Point:
        """The place where the script says `hold(name)`: wait for `reached`, then `release()`."""
        return self._script.point(name)

    def stream(self, request: ModelRequest, *, token: CancellationToken) -> Iterator[Chunk]:
        """Play the next entry; see `Model.stream`."""
        token.raise_if_cancelled()
        with self._lock:
            self.requests.append(request)
        if self._strict:
            check_pairing(request.messages)
        items = self._script.next(request)
        if items is None:
            raise ModelError("the script has no entry left for this request", code="script_ended")
        yield from self._play(items, token)
        token.raise_if_cancelled()

    def _play(self, items: List[Piece], token: CancellationToken) -> Iterator[Chunk]:
        calls = 0
        last: Optional[Chunk] = None
        for item in items:
            if isinstance(item, Item) and item.kind == "finish":
                if item.values["reason"] is not None:
                    yield Chunk(finish=_finish(item.values["reason"], calls))
                return
            for last in self._chunks(item, calls, token):
                token.raise_if_cancelled()
                calls = calls if last.index is None else max(calls, last.index + 1)
                yield last
                token.raise_if_cancelled()
        if last is None or last.finish is None:
            yield Chunk(finish="tool_calls" if calls else "stop")

    def _chunks(self, item: Piece, calls: int, token: CancellationToken) -> Iterable[Chunk]:
        """The chunks of one item; for one that says nothing, do what it does and give none."""
        said = self._script.chunks(item, calls)
        if said is not None:
            return said
        if isinstance(item, BaseException):
            raise item
        assert isinstance(item, Item)
        if item.kind == "usage":
            return [Chunk(usage=dict(item.values))]
        if item.kind == "stall":
            token.wait()
            token.raise_if_cancelled()
            raise ModelError("the script stalled, and its token was closed", code="connection")
        if item.kind == "delay":
            token.wait(item.values["seconds"])
        elif item.kind == "hold":
            _pause(self._script.point(item.values["name"]), token)
        else:
            raise _failure(item)
        token.raise_if_cancelled()
        return ()


def _pause(point: Point, token: CancellationToken) -> None:
    """Wait until the point is released or the token is cancelled."""
    woken = threading.Event()
    point.when_released(woken.set)
    with token.on_cancel(woken.set):
        point.reached.set()
        if not woken.wait(PATIENCE):
            raise AssertionError(f"nobody released the point {point.name!r} within {PATIENCE:g} s")


def _finish(reason: str, calls: int) -> Optional[str]:
    """What a client makes of a provider's word; raises `ModelError` where that is a failure."""
    from syncagent.boundary.models.chat_reply import ChatReply

    reply = ChatReply()
    list(reply.feed({"choices": [{"finish_reason": reason}]}))
    finish = list(reply.end())[-1].finish
    return "tool_calls" if calls and finish == "stop" else finish


def _failure(item: Item) -> BaseException:
    """What a client of a provider would make of this item."""
    from syncagent.boundary.models.failures import error_of_object, error_of_status

    if item.kind == "cut":
        return ModelError("the connection was cut", code="connection", retryable=True)
    if item.kind == "error":
        return error_of_object(item.values["error"])
    if item.kind == "status":
        body = item.values["body"]
        return error_of_status(item.values["code"], headers=item.values["headers"], body=body)
    return TypeError(f"{item.kind}() is for a ModelServer: a model without network has no bytes")
