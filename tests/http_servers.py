"""Real servers on the loopback that stall, drip, cut or answer as a test scripts it.

A `Server` runs a script for each connection, in a thread of its own: a function that gets a `Peer`.
Tests wait for what a script has reached (`peer.reached("name")`, `server.wait("name")`), and let it go on
(`server.go("name")`, `peer.await_go("name")`); nothing sleeps to order threads.
"""

import contextlib
import gc
import os
import select
import socket
import ssl
import sys
import threading
import time
import zlib
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import attrs
import trustme

#: Seconds after which a wait of a test has failed.
DEADLINE = 10.0

CHUNKED = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
GZIP_CHUNKED = CHUNKED[:-2] + b"Content-Encoding: gzip\r\n\r\n"
UNTIL_CLOSE = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


def with_length(length: int, *, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@attrs.frozen
class Request:
    method: str
    target: str
    headers: Dict[str, str]  # keys in lower case
    body: bytes


class Ended(Exception):
    """The client ended the connection, or the test did."""


class Peer:
    """One connection, as the server sees it."""

    def __init__(self, server: "Server", sock: Any) -> None:
        self.server = server
        self.sock = sock
        self._data = bytearray()
        self._gzip = zlib.compressobj(9, zlib.DEFLATED, 31)

    def receive(self) -> bytes:
        """Bytes from the client; raises `Ended` where there are no more."""
        try:
            data = self.sock.recv(65536)
        except OSError as exc:
            raise Ended from exc
        if not data:
            raise Ended
        return bytes(data)

    def request(self) -> Request:
        """The next request, with its body."""
        while b"\r\n\r\n" not in self._data:
            self._data += self.receive()
        head, _, rest = self._data.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(rest) < length:
            rest += self.receive()
        body, self._data = bytes(rest[:length]), rest[length:]
        request = Request(method, target, headers, body)
        self.server.requests.append(request)
        return request

    def receive_some(self, length: int) -> None:
        """Receive at least `length` bytes of what `request()` will return, and then stop reading."""
        goal = len(self._data) + length
        while len(self._data) < goal:
            self._data += self.receive()

    def send(self, *pieces: bytes) -> None:
        for piece in pieces:
            try:
                self.sock.sendall(piece)
            except OSError as exc:
                raise Ended from exc

    def send_gzip(self, data: bytes) -> None:
        """Send a chunk that can be decompressed at once to all of `data`."""
        self.send(chunk(self._gzip.compress(data) + self._gzip.flush(zlib.Z_SYNC_FLUSH)))

    def end_gzip(self) -> None:
        self.send(chunk(self._gzip.flush(zlib.Z_FINISH)), b"0\r\n\r\n")

    def stall(self) -> None:
        """Read and do nothing until the client ends the connection."""
        while True:
            self.receive()

    def stall_unread(self) -> None:
        """The same without reading, so that the client can't send more than the buffers hold."""
        poll = select.poll()
        poll.register(self.sock, getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR)
        poll.poll()
        raise Ended

    def reached(self, name: str) -> None:
        self.server.event(name).set()

    def await_go(self, name: str) -> None:
        if not self.server.event(name).wait(DEADLINE):
            raise AssertionError(f"the test never let the server go on to {name!r}")


Script = Callable[[Peer], None]


class Server:
    """Listens on a free port of 127.0.0.1 while its block runs; `script` answers each connection.

    `requests` holds what was asked and `connections` counts. What goes wrong in a script is raised at
    the end of the block, by which all threads and sockets of the server are gone.
    """

    def __init__(
        self, script: Script, *, tls: Optional[ssl.SSLContext] = None, receive_buffer: int = 0
    ) -> None:
        self.script = script
        self.connections = 0
        self.requests: List[Request] = []
        self._tls = tls
        self._lock = threading.Lock()
        self._events: Dict[str, threading.Event] = {}
        self._open: Dict[int, Tuple[threading.Thread, socket.socket]] = {}
        self._all_ended = threading.Condition(self._lock)
        self._failures: List[BaseException] = []
        self._stopping = False
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if receive_buffer:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self._listener.bind(("127.0.0.1", 0))
        self._listener.listen(128)
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="test-server", daemon=True)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{self.address}"

    def event(self, name: str) -> threading.Event:
        with self._lock:
            return self._events.setdefault(name, threading.Event())

    def wait(self, name: str) -> None:
        """Wait until a script has reached `name`."""
        assert self.event(name).wait(DEADLINE), f"the server never reached {name!r}"

    def go(self, name: str) -> None:
        """Let a script that awaits `name` go on."""
        self.event(name).set()

    def wait_ended(self) -> None:
        """Wait until the server has seen the end of each connection."""
        with self._all_ended:
            if not self._all_ended.wait_for(lambda: not self._open, DEADLINE):
                left = [str(handle) for _, handle in self._open.values()]
                raise AssertionError(f"of {self.connections} connections these are still open: {left}")

    def __enter__(self) -> "Server":
        self._thread.start()
        return self

    def __exit__(self, kind: Any, *rest: Any) -> None:
        self._stopping = True
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
            pass  # wakes accept()
        self._thread.join(DEADLINE)
        self._listener.close()
        with self._lock:
            running = list(self._open.values())
            for event in self._events.values():
                event.set()
            for _, handle in running:
                with contextlib.suppress(OSError):
                    handle.shutdown(socket.SHUT_RDWR)
        for thread, _ in running:
            thread.join(DEADLINE)
            assert not thread.is_alive(), "a connection's thread is left"
        if kind is None and self._failures:
            raise self._failures[0]

    def _accept(self) -> None:
        while True:
            sock, _ = self._listener.accept()
            if self._stopping:
                sock.close()
                return
            # A handle of its own: the thread may have wrapped the socket when the server stops.
            thread = threading.Thread(target=self._serve, args=(sock,), name="test-connection", daemon=True)
            with self._lock:
                self.connections += 1
                self._open[id(sock)] = (thread, sock.dup())
            thread.start()

    def _serve(self, accepted: socket.socket) -> None:
        key, sock = id(accepted), accepted
        try:
            if self._tls is not None:
                sock = self._tls.wrap_socket(accepted, server_side=True)
            self.script(Peer(self, sock))
        except (Ended, ssl.SSLError, ConnectionError):
            pass  # the client left: that's how most scripts end
        except BaseException as exc:
            self._failures.append(exc)
        finally:
            sock.close()
            with self._all_ended:
                self._open.pop(key)[1].close()
                self._all_ended.notify_all()


# -- scripts ----------------------------------------------------------------------------------------


def silent(peer: Peer) -> None:
    """Reads whatever comes and never says a word."""
    peer.reached("connected")
    peer.stall()


def unread(peer: Peer) -> None:
    """Reads nothing."""
    peer.reached("connected")
    peer.stall_unread()


def no_headers(peer: Peer) -> None:
    """Reads the request and never answers."""
    peer.request()
    peer.reached("stalled")
    peer.stall()


def stalling(*pieces: bytes) -> Script:
    """Answers with `pieces`, the head first, and says nothing more."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(*pieces)
        peer.reached("stalled")
        peer.stall()

    return script


def answering(answer: bytes) -> Script:
    """Gives the same answer to every request of a connection."""

    def script(peer: Peer) -> None:
        while True:
            peer.request()
            peer.send(answer)

    return script


def cut(*pieces: bytes) -> Script:
    """Answers with `pieces` and ends the connection."""

    def script(peer: Peer) -> None:
        peer.request()
        peer.send(*pieces)

    return script


OK = with_length(2) + b"ok"


def connect_proxy(peer: Peer) -> None:
    """Tunnels to wherever CONNECT says."""
    host, _, port = peer.request().target.partition(":")
    with socket.create_connection((host, int(port)), DEADLINE) as upstream:
        upstream.settimeout(None)
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        tunnel(peer, upstream)


def socks_proxy(peer: Peer) -> None:
    """Tunnels as SOCKS5 says, for IPv4 addresses and without authentication."""
    assert peer.receive()[:1] == b"\x05"
    peer.send(b"\x05\x00")
    asked = peer.receive()
    assert asked[:4] == b"\x05\x01\x00\x01"
    where = (socket.inet_ntoa(asked[4:8]), int.from_bytes(asked[8:10], "big"))
    with socket.create_connection(where, DEADLINE) as upstream:
        upstream.settimeout(None)
        peer.send(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
        tunnel(peer, upstream)


def tunnel(peer: Peer, upstream: socket.socket) -> None:
    peer.reached("tunnelled")
    poll = select.poll()
    others = {peer.sock.fileno(): (peer.sock, upstream), upstream.fileno(): (upstream, peer.sock)}
    for number in others:
        poll.register(number, select.POLLIN)
    while True:
        for number, _ in poll.poll():
            source, target = others[number]
            data = source.recv(65536)
            if not data:
                return
            target.sendall(data)


@contextlib.contextmanager
def full_backlog() -> Iterator[int]:
    """A port that lets nobody in: a connection to it stays half made."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


# -- certificates -----------------------------------------------------------------------------------


class Authority:
    """A certificate authority for the tests; `bundle` is the file that trusts it."""

    def __init__(self, folder: Any) -> None:
        self._ca = trustme.CA()
        self.bundle = os.path.join(str(folder), "authority.pem")
        self._ca.cert_pem.write_to_path(self.bundle)

    def context(self, name: str = "127.0.0.1") -> ssl.SSLContext:
        """A server's context with a certificate for `name`."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._ca.issue_cert(name).configure_cert(context)
        return context


# -- waiting ----------------------------------------------------------------------------------------


def wait_until(condition: Callable[[], object], what: str) -> None:
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.002)  # nobody announces it


def wait_blocked(thread: threading.Thread) -> None:
    """Wait until the thread has stood at the same instruction for a while, or has ended."""
    seen: List[Any] = []

    def stands() -> bool:
        # Python 3.11 hangs where the collector runs inside this call and frees a threading.local.
        gc.disable()
        frame = sys._current_frames().get(thread.ident or 0)
        gc.enable()
        seen.append((id(frame), frame.f_lasti if frame is not None else None))
        return not thread.is_alive() or len(seen) > 8 and len(set(seen[-8:])) == 1

    wait_until(stands, "the thread is blocked")


def open_descriptors() -> List[str]:
    """What the descriptors of this process stand for, sorted; anonymous ones by their kind."""
    names = []
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder's own
            names.append(f"{number} {os.readlink(f'/proc/self/fd/{number}')}")
    return sorted(name for name in names if "/proc/" not in name)
