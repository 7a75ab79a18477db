"""A model provider on the loopback interface that plays a script. It knows no client.

A real server: it speaks HTTP/1.1 over real sockets, with one thread for each connection.
"""

import contextlib
import http.client
import io
import json
import select
import socket
import struct
import threading
import time
from types import TracebackType
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Optional, Type

import attrs

from syncagent.boundary.models.protocol import Chunk
from syncagent.testing.points import Point
from syncagent.testing.script import Entry, Item, Piece, Script
from syncagent.testing.wire import delta_of, event, refusal_of, usage_of

__all__ = ["ModelServer", "ServerRequest"]


@attrs.frozen(kw_only=True, eq=False)
class ServerRequest:
    """A request that a `ModelServer` got.

    `headers` can be read in any case, `body` is the JSON value (None if there is none), `refused`
    why it was answered with 400, or None. `gone` is set when the client ended the connection before
    the answer was complete, `done` when the server has finished with the request, either way.
    """

    method: str
    path: str
    headers: http.client.HTTPMessage
    raw: bytes
    body: Any
    refused: Optional[str]
    gone: threading.Event = attrs.field(factory=threading.Event, repr=False)
    done: threading.Event = attrs.field(factory=threading.Event, repr=False)


class ModelServer:
    """A loopback server of streamed Chat Completions that answers from a script.

        with ModelServer([["Hello", " there.", usage(12, 4)], status(500)]) as server:
            model = ChatModel("any", base_url=server.url, api_key="secret")

    It runs from the moment it is made until `close()`, which leaves no thread and no socket.
    `requests` lists what it got. With `strict`, the default, a transcript that a strict provider
    would refuse is answered with 400 and takes no entry of the script. With `chunked=False` an
    answer has no length and ends with its connection. `delay` of the script are real seconds.
    """

    def __init__(self, script: Iterable[Entry] = (), *, strict: bool = True, chunked: bool = True) -> None:
        self.requests: List[ServerRequest] = []
        self.strict = strict
        self.chunked = chunked
        self.script = Script(script)
        self.closing = False
        self._changed = threading.Condition()
        self._connections: Dict["_Connection", threading.Thread] = {}
        self._wake, self._woken = socket.socketpair()
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="model-server", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<ModelServer {self.url}, {len(self.requests)} requests>"

    @property
    def url(self) -> str:
        """The base URL; it ends with /v1."""
        return f"http://127.0.0.1:{self._port}/v1"

    @property
    def connections(self) -> int:
        """How many connections are open now."""
        with self._changed:
            return len(self._connections)

    def point(self, name: str) -> Point:
        """The place where the script says `hold(name)`: wait for `reached`, then `release()`."""
        return self.script.point(name)

    def request(self, number: int = 0, *, timeout: float = 10.0) -> ServerRequest:
        """The request of this number, from 0; wait for it if it hasn't come yet.

        Raises `AssertionError` when it hasn't come after `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.requests) > number, timeout):
                raise AssertionError(f"no request {number} within {timeout:g} s: {len(self.requests)} came")
            return self.requests[number]

    def close(self) -> None:
        """End every connection and thread. May be repeated."""
        with self._changed:
            self.closing = True
            connections = dict(self._connections)
        with contextlib.suppress(OSError):  # it was closed before
            self._wake.send(b"x")
        self._thread.join()
        for connection, thread in connections.items():
            connection.stop()
            thread.join()
        self.script.release_all()
        for each in (self._socket, self._wake, self._woken):
            each.close()

    def __enter__(self) -> "ModelServer":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def record(self, request: ServerRequest) -> None:
        """Add a request to the list and tell who waits for it."""
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()

    def _accept(self) -> None:
        poll = select.poll()  # not select(): that fails where many descriptors are open
        poll.register(self._socket, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while True:
            if self._woken.fileno() in dict(poll.poll()):
                return
            connection = _Connection(self, self._socket.accept()[0])
            thread = threading.Thread(target=self._serve, args=(connection,), name="model-server-connection")
            thread.daemon = True
            with self._changed:
                if self.closing:
                    connection.close()
                    return
                self._connections[connection] = thread
                thread.start()

    def _serve(self, connection: "_Connection") -> None:
        try:
            connection.serve()
        finally:
            connection.close()
            with self._changed:
                self._connections.pop(connection, None)


class _Gone(Exception):
    """The client has ended the connection, or the server is being closed."""


class _Connection:
    """One client's connection and the thread that serves it."""

    def __init__(self, server: ModelServer, sock: socket.socket) -> None:
        self._server = server
        self._socket = sock
        self._file: io.BufferedReader = sock.makefile("rb")
        self._wake, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        # So that each piece is a segment of its own, as from a provider that flushes.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def serve(self) -> None:
        with contextlib.suppress(_Gone, OSError):  # the connection is over, whoever ended it
            while self._serve_one():
                pass

    def stop(self) -> None:
        """Wake the thread from whatever it waits for; called from another thread."""
        self.wake()
        with contextlib.suppress(OSError):  # the client has ended it already
            self._socket.shutdown(socket.SHUT_RDWR)

    def wake(self) -> None:
        with contextlib.suppress(OSError):  # the connection is closed: nobody waits any more
            self._wake.send(b"x")

    def close(self) -> None:
        for each in (self._file, self._socket, self._wake, self._woken):
            each.close()

    def cut(self, *, reset: bool) -> None:
        if reset:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self._socket.shutdown(socket.SHUT_RDWR)
        raise _Gone

    def send(self, content: bytes) -> None:
        self._socket.sendall(content)

    def pause(self, *, seconds: Optional[float] = None, point: Optional[Point] = None) -> None:
        """Wait so long, or until the point is released; raises `_Gone` when the client leaves."""
        deadline = None if seconds is None else time.monotonic() + seconds
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self._socket, select.POLLIN)
        if point is not None:
            point.when_released(self.wake)
            point.reached.set()
        while point is None or not point.released:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                return
            ready = dict(poll.poll(None if left is None else left * 1000))
            if self._server.closing:
                raise _Gone
            if self._woken.fileno() in ready:
                with contextlib.suppress(BlockingIOError):
                    self._woken.recv(64)
            if self._socket.fileno() in ready:
                if not self._socket.recv(1, socket.MSG_PEEK):
                    raise _Gone
                poll.unregister(self._socket)  # the next request is here already: it has to wait

    def _serve_one(self) -> bool:
        """Answer one request; return whether the connection can be used for another."""
        request = self._read_request()
        if request is None:
            return False
        self._server.record(request)
        try:
            return _Answer(self._server, self, request).give()
        except (_Gone, OSError):
            if not self._server.closing:
                request.gone.set()
            raise
        finally:
            request.done.set()

    def _read_request(self) -> Optional[ServerRequest]:
        line = self._file.readline(65536)
        if not line:
            return None
        words = line.decode("latin-1").split()
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            return None  # a TLS handshake, say
        method, path, _ = words
        try:
            headers = http.client.parse_headers(self._file)
            length = int(headers.get("Content-Length", "0"))
        except (http.client.HTTPException, ValueError):
            return None
        raw = self._file.read(max(length, 0))
        try:
            body = json.loads(raw) if raw else None
        except ValueError:
            body = None
        refused = refusal_of(body) if self._server.strict and method == "POST" else None
        return ServerRequest(
            method=method, path=path, headers=headers, raw=raw, body=body, refused=refused
        )


class _Answer:
    """The answer to one request."""

    def __init__(self, server: ModelServer, connection: _Connection, request: ServerRequest) -> None:
        self._server = server
        self._connection = connection
        self._request = request
        self._open = False
        self._calls = 0
        self._said = False
        self._usage: Optional[Mapping[str, int]] = None

    def give(self) -> bool:
        request = self._request
        if request.method != "POST" or request.path.partition("?")[0] != "/v1/chat/completions":
            return self._error(404, f"there is no {request.method} {request.path} here")
        if request.refused is not None:
            return self._error(400, request.refused)
        items = self._server.script.next(request.body)
        if items is None:
            return self._error(400, "the script has no entry left for this request")
        return self._play(items)

    def _play(self, items: List[Piece]) -> bool:
        for item in items:
            if isinstance(item, Item) and item.kind == "status":
                return self._whole(item.values["code"], item.values["headers"], item.values["body"])
            if isinstance(item, Item) and item.kind in ("finish", "error"):
                return self._last(item)
            self._do(item)
        return self._finish("tool_calls" if self._calls else "stop")

    def _do(self, item: Piece) -> None:
        for chunk in self._chunks(item):
            if not self._said:
                self._said = True
                self._choice({"role": "assistant", "content": ""})
            self._calls = self._calls if chunk.index is None else max(self._calls, chunk.index + 1)
            self._choice(delta_of(chunk))
        if isinstance(item, BaseException):
            raise item
        if not isinstance(item, Item):
            return
        kind, values = item.kind, item.values
        if kind == "usage":
            self._usage = values
        elif kind == "headers":
            self._begin(values)
        elif kind in ("raw", "data"):
            self._write(values["content"] if kind == "raw" else event(values["value"]))
        elif kind == "delay":
            self._connection.pause(seconds=values["seconds"])
        elif kind == "hold":
            self._connection.pause(point=self._server.script.point(values["name"]))
        elif kind == "stall":
            self._connection.pause()
        elif kind == "cut":
            self._connection.cut(reset=values["reset"])

    def _chunks(self, item: Piece) -> Iterator[Chunk]:
        yield from self._server.script.chunks(item, self._calls) or ()

    def _last(self, item: Item) -> bool:
        if item.kind == "error":
            self._write(event({"error": item.values["error"]}))
            return self._end()
        return self._end() if item.values["reason"] is None else self._finish(item.values["reason"])

    def _finish(self, reason: str) -> bool:
        self._choice({}, finish={"max_tokens": "length"}.get(reason, reason))
        wanted = (self._request.body.get("stream_options") or {}).get("include_usage")
        if self._usage is not None and wanted:
            self._write(event({**self._head(), "choices": [], "usage": usage_of(self._usage)}))
        self._write(b"data: [DONE]\n\n")
        return self._end()

    def _head(self) -> Dict[str, Any]:
        model = self._request.body.get("model")
        return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": model}

    def _choice(self, delta: Mapping[str, Any], finish: Optional[str] = None) -> None:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        self._write(event({**self._head(), "choices": [choice]}))

    # -- bytes ------------------------------------------------------------------------------------

    def _begin(self, more: Optional[Mapping[str, str]] = None) -> None:
        if self._open:
            return
        self._open = True
        framing = {"Transfer-Encoding": "chunked"} if self._server.chunked else {"Connection": "close"}
        self._send_head(200, {"Content-Type": "text/event-stream", **framing, **(more or {})})

    def _write(self, content: bytes) -> None:
        self._begin()
        if content:
            framed = b"%x\r\n%s\r\n" % (len(content), content) if self._server.chunked else content
            self._connection.send(framed)

    def _end(self) -> bool:
        self._begin()
        if self._server.chunked:
            self._connection.send(b"0\r\n\r\n")
        return self._server.chunked

    def _error(self, code: int, message: str) -> bool:
        body = {"error": {"message": message, "type": "invalid_request_error", "code": None}}
        return self._whole(code, {}, body)

    def _whole(self, code: int, headers: Mapping[str, str], body: Any) -> bool:
        content = body if isinstance(body, bytes) else None
        if content is None:
            content = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        length = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        self._send_head(code, {**length, **headers}, content)
        return True

    def _send_head(self, code: int, headers: Mapping[str, str], content: bytes = b"") -> None:
        reason = http.client.responses.get(code, "Unknown")
        lines = [f"HTTP/1.1 {code} {reason}", *(f"{name}: {value}" for name, value in headers.items())]
        self._connection.send("\r\n".join([*lines, "", ""]).encode("latin-1") + content)
