"""The places where a request waits, each with the servers that make it wait there."""

import contextlib
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Optional

import attrs

import http_servers as servers
from http_servers import DEADLINE, Authority, Server

from syncagent.boundary.http.client import HttpClient
from syncagent.cancel import CancellationToken

EVENTS = b"data: 0\n\ndata: 1\n\n"
BODY = b"x" * (32 << 20)


@attrs.define
class Case:
    """One request that will block: where to, with what, and how it's known that it does."""

    url: str
    body: Optional[bytes] = None
    method: str = "GET"
    proxies: Optional[Dict[str, str]] = None
    wait: Callable[[], None] = lambda: None
    servers: List[Server] = attrs.Factory(list)
    partial: bool = False
    busy: bool = False
    warm: bool = False  # a request was answered over the connection before


class Attempt:
    """Makes the request in a thread and keeps how it ended."""

    def __init__(self, client: HttpClient, token: CancellationToken, case: Case) -> None:
        self.pieces: List[bytes] = []
        self.outcome: Optional[BaseException] = None
        self.ended = 0.0  # by the clock of `time.perf_counter`
        self._arguments = (client, token, case)
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        client, token, case = self._arguments
        try:
            with client.stream(case.method, case.url, token=token, body=case.body) as response:
                for piece in response.iter_bytes():
                    self.pieces = [*self.pieces[-2:], piece]
        except BaseException as exc:
            self.ended = time.perf_counter()
            self.outcome = exc

    def join(self) -> None:
        self.thread.join(DEADLINE)
        assert not self.thread.is_alive(), "the request was not woken"


# -- the places where a request waits -----------------------------------------------------------------

Blocked = Callable[[Authority], Any]
#: name -> a context manager that gives the case, with its servers running.
PLACES: Dict[str, Blocked] = {}


def place(fn: Callable[[Authority], Iterator[Case]]) -> Callable[[Authority], Iterator[Case]]:
    PLACES[fn.__name__] = contextlib.contextmanager(fn)
    return fn


@place
def connecting(authority: Authority) -> Iterator[Case]:
    with servers.full_backlog() as port:
        yield Case(f"http://127.0.0.1:{port}/")


@place
def tls_handshake(authority: Authority) -> Iterator[Case]:
    with Server(servers.silent) as server:
        yield Case(f"https://{server.address}/", wait=lambda: server.wait("connected"), servers=[server])


@place
def connect_of_a_proxy(authority: Authority) -> Iterator[Case]:
    with Server(servers.silent) as proxy:
        yield Case(
            "https://127.0.0.1:9/",
            proxies={"https": proxy.url},
            wait=lambda: proxy.wait("connected"),
            servers=[proxy],
        )


@place
def tls_handshake_with_a_proxy(authority: Authority) -> Iterator[Case]:
    with Server(servers.silent) as proxy:
        yield Case(
            "https://127.0.0.1:9/",
            proxies={"https": f"https://{proxy.address}"},
            wait=lambda: proxy.wait("connected"),
            servers=[proxy],
        )


@place
def sending_a_body(authority: Authority) -> Iterator[Case]:
    with Server(servers.unread, receive_buffer=4096) as server:
        wait = lambda: server.wait("connected")  # noqa: E731
        yield Case(server.url, body=BODY, method="POST", wait=wait, servers=[server])


@place
def sending_a_body_over_tls(authority: Authority) -> Iterator[Case]:
    with Server(servers.unread, tls=authority.context(), receive_buffer=4096) as server:
        wait = lambda: server.wait("connected")  # noqa: E731
        yield Case(server.url, body=BODY, method="POST", wait=wait, servers=[server])


def stalled(server: Server, **more: Any) -> Case:
    return Case(server.url, wait=lambda: server.wait("stalled"), servers=[server], **more)


@place
def headers(authority: Authority) -> Iterator[Case]:
    with Server(servers.no_headers) as server:
        yield stalled(server)


@place
def headers_over_tls(authority: Authority) -> Iterator[Case]:
    with Server(servers.no_headers, tls=authority.context()) as server:
        yield stalled(server)


def ok_then_stall(peer: servers.Peer) -> None:
    peer.request()
    peer.send(servers.OK)
    peer.request()
    peer.reached("stalled")
    peer.stall()


@place
def headers_on_a_kept_connection(authority: Authority) -> Iterator[Case]:
    with Server(ok_then_stall, tls=authority.context()) as server:
        yield stalled(server, warm=True)


def half_a_head(peer: servers.Peer) -> None:
    peer.request()
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Le")
    peer.reached("stalled")
    peer.stall()


@place
def headers_half_sent(authority: Authority) -> Iterator[Case]:
    with Server(half_a_head) as server:
        yield stalled(server)


@place
def stream(authority: Authority) -> Iterator[Case]:
    with Server(servers.stalling(servers.CHUNKED, servers.chunk(EVENTS))) as server:
        yield stalled(server, partial=True)


@place
def stream_over_tls(authority: Authority) -> Iterator[Case]:
    script = servers.stalling(servers.CHUNKED, servers.chunk(EVENTS))
    with Server(script, tls=authority.context()) as server:
        yield stalled(server, partial=True)


@place
def stream_through_connect(authority: Authority) -> Iterator[Case]:
    script = servers.stalling(servers.CHUNKED, servers.chunk(EVENTS))
    with Server(script, tls=authority.context()) as server, Server(servers.connect_proxy) as proxy:
        case = stalled(server, partial=True, proxies={"https": proxy.url})
        case.servers.append(proxy)
        yield case


@place
def tls_within_tls_on_a_kept_connection(authority: Authority) -> Iterator[Case]:
    with Server(ok_then_stall, tls=authority.context()) as server:
        with Server(servers.connect_proxy, tls=authority.context()) as proxy:
            case = stalled(server, warm=True, proxies={"https": proxy.url})
            case.servers.append(proxy)
            yield case


@place
def stream_through_a_forwarding_proxy(authority: Authority) -> Iterator[Case]:
    with Server(servers.stalling(servers.CHUNKED, servers.chunk(EVENTS))) as proxy:
        case = stalled(proxy, partial=True, proxies={"http": proxy.url})
        case.url = "http://192.0.2.1/"
        yield case


@place
def connecting_to_a_socks_proxy(authority: Authority) -> Iterator[Case]:
    import socks  # noqa: F401

    with servers.full_backlog() as port:
        yield Case("http://127.0.0.1:9/", proxies={"http": f"socks5h://127.0.0.1:{port}"})


@place
def negotiating_with_a_socks_proxy(authority: Authority) -> Iterator[Case]:
    import socks  # noqa: F401

    with Server(servers.silent) as proxy:
        yield Case(
            "http://127.0.0.1:9/",
            proxies={"http": f"socks5://{proxy.address}"},
            wait=lambda: proxy.wait("connected"),
            servers=[proxy],
        )


@place
def stream_over_socks(authority: Authority) -> Iterator[Case]:
    import socks  # noqa: F401

    script = servers.stalling(servers.CHUNKED, servers.chunk(EVENTS))
    with Server(script, tls=authority.context()) as server, Server(servers.socks_proxy) as proxy:
        case = stalled(server, partial=True, proxies={"https": f"socks5://{proxy.address}"})
        case.servers.append(proxy)
        yield case


@place
def gzip_stream_over_tls(authority: Authority) -> Iterator[Case]:
    def script(peer: servers.Peer) -> None:
        peer.request()
        peer.send(servers.GZIP_CHUNKED)
        peer.send_gzip(EVENTS)
        peer.reached("stalled")
        peer.stall()

    with Server(script, tls=authority.context()) as server:
        yield stalled(server, partial=True)


@place
def chunk_half_sent(authority: Authority) -> Iterator[Case]:
    with Server(servers.stalling(servers.CHUNKED, b"40\r\n" + EVENTS)) as server:
        yield stalled(server, partial=True)


@place
def chunk_size_half_sent(authority: Authority) -> Iterator[Case]:
    with Server(servers.stalling(servers.CHUNKED, servers.chunk(EVENTS), b"4")) as server:
        yield stalled(server, partial=True)


@place
def body_until_close(authority: Authority) -> Iterator[Case]:
    """A shutdown looks like the end of such a body, on every version."""
    with Server(servers.stalling(servers.UNTIL_CLOSE, EVENTS)) as server:
        yield stalled(server, partial=True)


@place
def body_of_a_known_length(authority: Authority) -> Iterator[Case]:
    with Server(servers.stalling(servers.with_length(1000), EVENTS)) as server:
        yield stalled(server, partial=True)


@place
def flood(authority: Authority) -> Iterator[Case]:
    def script(peer: servers.Peer) -> None:
        peer.request()
        peer.send(servers.UNTIL_CLOSE)
        block = b"x" * (1 << 20)
        for number in range(1 << 20):
            peer.send(block)
            if number == 20:
                peer.reached("stalled")

    with Server(script) as server:
        yield stalled(server, partial=True, busy=True)


@place
def busy_stream_over_tls(authority: Authority) -> Iterator[Case]:
    def script(peer: servers.Peer) -> None:
        peer.request()
        peer.send(servers.CHUNKED)
        for number in range(1 << 30):
            peer.send(servers.chunk(b"data: " + b"y" * 200 + b"\n\n"))
            if number == 200:
                peer.reached("stalled")

    with Server(script, tls=authority.context()) as server:
        yield stalled(server, partial=True, busy=True)
