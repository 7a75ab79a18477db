"""A requests adapter whose every wait is woken by a token. It knows no status, header or body.

Two things wake a request. While it connects, it polls its own non-blocking socket together with the
token's descriptor. From then on a `Lease` owns a duplicate of the socket's descriptor, and the
canceller's thread shuts the connection down through it: TLS handshake, CONNECT, sending, waiting for
the headers and reading the body all end at once, with an error or with what looks like a clean end.
So it's the token that is asked afterwards, never the kind of error.

Proxies are covered: forwarding, CONNECT, and SOCKS with its negotiation (`over_socks`); so is the
lookup of names, the proxies' too (`names`). Not woken are lookups with `dns="inline"` and, on Windows,
which has no `poll`, connecting; both check the token before and after.

What was tried and rejected: closing the socket wakes nobody and lets the number be reused;
`SSLSocket.shutdown` drops the TLS state, so the reader gets ciphertext as data; short read time-outs
break http.client's reader.
"""

import contextlib
import functools
import math
import os
import socket
import struct
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Dict, Iterator, Optional, Tuple

import attrs
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError
from urllib3.util.ssl_ import create_urllib3_context, resolve_cert_reqs

from syncagent.boundary.http import over_socks
from syncagent.boundary.http.names import Names
from syncagent.cancel import CancellationToken

__all__ = ["CancellableAdapter", "Lease"]

#: Bytes that are sent under one time-out: `sendall` has one limit for all that it is given.
_SLICE = 65536
#: Seconds after which an idle connection isn't used again: what stands between may have forgotten it
#: without a word, and then a request would wait for its whole idle limit.
_KEPT = 30.0


@attrs.define(eq=False)
class Lease:
    """One request's hold on the connection that it uses at the moment; a context manager.

    Fires once, when the token is cancelled: then the socket that is attached is shut down, and every
    one that is attached later. The descriptor is a duplicate and closed under the lock under which
    it's shut down, so a number that was reused is never touched. Close the response before the lease:
    the duplicate keeps the connection open. `names` looks up the hosts that the request connects to.
    """

    token: CancellationToken
    names: Names = attrs.field(factory=Names, kw_only=True)
    _lock: Any = attrs.field(factory=threading.Lock, init=False, repr=False)
    _sock: Any = attrs.field(default=None, init=False, repr=False)
    _duplicate: Optional[socket.socket] = attrs.field(default=None, init=False, repr=False)
    _fired: bool = attrs.field(default=False, init=False)
    _pid: int = attrs.field(factory=os.getpid, init=False, repr=False)
    _stack: contextlib.ExitStack = attrs.field(factory=contextlib.ExitStack, init=False, repr=False)

    def __enter__(self) -> "Lease":
        self._stack.enter_context(self.token.on_cancel(self._fire))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()
        self.detach()

    def attach(self, sock: Any) -> None:
        """Hold `sock` instead of the one before. If the token was cancelled, it is shut down now."""
        # Not sock.dup(): an SSLSocket's would be an SSLSocket.
        duplicate = socket.fromfd(sock.fileno(), getattr(sock, "family", socket.AF_INET), socket.SOCK_STREAM)
        # Blocking or not is a property of the connection, and a new object sets it from the default.
        duplicate.settimeout(sock.gettimeout())
        self._sock = sock
        with self._lock:
            before, self._duplicate = self._duplicate, duplicate
            if before is not None:
                before.close()
            if self._fired:
                self._shut_down_locked()

    def detach(self) -> bool:
        """Let go of the connection; return whether it is whole, that is, was never shut down."""
        self._sock = None
        with self._lock:
            if self._duplicate is not None:
                self._duplicate.close()
                self._duplicate = None
            return not self._fired

    def limit_silence(self, seconds: float) -> None:
        """Have reads of the connection wait at most so long, more than 0, for what comes next."""
        if self._sock is not None:
            self._sock.settimeout(seconds)

    def forget_unsent(self) -> None:
        """Have the close drop what the system could not send yet, instead of keeping it for a server
        that has stopped reading and so would never learn of the end."""
        with self._lock, contextlib.suppress(OSError):  # it's gone: then nothing is kept either
            if self._duplicate is not None and os.name == "posix":
                self._duplicate.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _fire(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child cancels its copy of the token: the connection is its parent's
        with self._lock:
            self._fired = True
            self._shut_down_locked()

    def _shut_down_locked(self) -> None:
        assert self._lock.locked()
        if self._duplicate is not None:
            with contextlib.suppress(OSError):  # the other side was first: it's down already
                self._duplicate.shutdown(socket.SHUT_RDWR)


#: Which request each thread makes now, by its number, and the longest time in which it can't send a
#: byte. urllib3 offers no way to hand an argument down to a connection. It's no `threading.local`:
#: where the collector frees one inside `sys._current_frames()`, Python 3.11 hangs for ever.
_Bindings = Dict[int, Tuple[Lease, Optional[float]]]

_UNBOUND = (None, None)


if TYPE_CHECKING:
    _AnyConnection = HTTPSConnection
    _AnyPool = HTTPConnectionPool
else:
    _AnyConnection = _AnyPool = object


class _Leased(_AnyConnection):
    """A connection that knows whose request it carries; in the pool it has no lease."""

    lease: Optional[Lease] = None
    silence: Optional[float] = None
    used: float = math.inf  # when it was put into the pool, on the monotonic clock

    def _new_conn(self) -> socket.socket:
        if self.lease is None:
            return super()._new_conn()
        sock = self._dial(self.lease)
        with _closed_on_error(sock):
            self.lease.attach(sock)
        return sock

    def connect(self) -> None:
        super().connect()
        if self.lease is not None:
            self.lease.attach(self.sock)  # TLS, and TLS within it, have put other sockets over the first

    def _dial(self, lease: Lease) -> socket.socket:
        limit = self.timeout if isinstance(self.timeout, (int, float)) else None
        try:
            sock = self._connected(lease, limit)
        except socket.timeout as exc:
            raise ConnectTimeoutError(self, f"no connection within {limit} s") from exc
        except OSError as exc:
            raise NewConnectionError(self, f"no connection: {exc}") from exc
        sys.audit("http.client.connect", self, self.host, self.port)
        return sock

    def _connected(self, lease: Lease, limit: Optional[float]) -> socket.socket:
        host = getattr(self, "_dns_host", self.host).strip("[]")
        return lease.names.connect(
            host,
            self.port,
            token=lease.token,
            timeout=limit,
            source_address=self.source_address,
            options=self.socket_options,
        )

    def _tunnel(self) -> None:
        sock = self.sock
        try:
            super()._tunnel()
        except BaseException:
            # Older versions of http.client leave the answer's file open, and so the socket under it.
            number = sock.detach() if sock is not None else -1
            if number >= 0:
                socket.close(number)
            raise

    def send(self, data: Any) -> None:
        try:
            if self.lease is None or not isinstance(data, bytes) or len(data) <= _SLICE:
                super().send(data)
                return
            view = memoryview(data)
            for start in range(0, len(view), _SLICE):
                if self.sock is not None:
                    self.sock.settimeout(self.silence)
                super().send(view[start : start + _SLICE])
        except OSError:
            if self.lease is not None:
                self.lease.forget_unsent()
            raise


class _LeasedOverSocks(_Leased):
    _socks_options: Dict[str, Any]

    def _connected(self, lease: Lease, limit: Optional[float]) -> socket.socket:
        return over_socks.connect(
            (self.host.strip("[]"), self.port),
            proxy=self._socks_options,
            token=lease.token,
            attach=lease.attach,
            names=lease.names,
            timeout=limit,
            source_address=self.source_address,
            options=self.socket_options,
        )


class _LeasedTls(_Leased):
    """Keeps a cancel from shutting the connection down while `ssl` takes it over.

    `ssl` doesn't begin a handshake on a socket that is down: it hands out one without TLS, or, in older
    versions, fails and leaves it open. So the lease is given up for that moment, in which nothing
    blocks, and taken again for the handshake.
    """

    _own_context: Any = None

    def connect(self) -> None:
        if self.ssl_context is self._own_context:  # else it's a context that others share
            self.ssl_context = self._own_context = None if self.lease is None else self._context(self.lease)
        super().connect()

    def _context(self, lease: Lease) -> Any:
        context: Any = create_urllib3_context(cert_reqs=resolve_cert_reqs(self.cert_reqs))
        if not (self.ca_certs or self.ca_cert_dir or self.ca_cert_data):
            context.load_default_certs()
        context.wrap_socket = functools.partial(self._wrap, context.wrap_socket, lease)
        return context

    def _wrap(self, wrap: Any, lease: Lease, sock: Any, **options: Any) -> Any:
        lease.detach()
        lease.token.raise_if_cancelled()
        secure = wrap(sock, do_handshake_on_connect=False, **options)
        with _closed_on_error(secure):
            lease.attach(secure)
            secure.do_handshake()
        return secure


@contextlib.contextmanager
def _closed_on_error(closable: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        closable.close()
        raise


class _LeasedPool(_AnyPool):
    """Ties a connection to the lease of its request when it's taken out, and unties it before it's back.

    urllib3 gives a connection back by itself as soon as the body has ended. If it were untied only
    after that, a late cancel would shut down a connection that another request has by then.
    """

    def __init__(self, bindings: _Bindings, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._bindings = bindings

    def _get_conn(self, timeout: Optional[float] = None) -> Any:
        conn: Any = super()._get_conn(timeout)
        while conn.sock is not None and time.monotonic() - conn.used > _KEPT:
            conn.close()
            conn = super()._get_conn(timeout)
        conn.lease, conn.silence = self._bindings.get(threading.get_ident(), _UNBOUND)
        if conn.lease is not None and conn.sock is not None:
            with _closed_on_error(conn):
                conn.sock.settimeout(conn.silence)  # what is left there is the last request's limit
                conn.lease.attach(conn.sock)
        return conn

    def _put_conn(self, conn: Any) -> None:
        if conn is not None and conn.lease is not None:
            lease, conn.lease = conn.lease, None
            if not lease.detach():
                conn.close()  # it was shut down; only the empty shell may be used again
            conn.used = time.monotonic()
        super()._put_conn(conn)


class _Connection(_Leased, HTTPConnection):
    pass


class _SecureConnection(_LeasedTls, HTTPSConnection):
    pass


class _Pool(_LeasedPool, HTTPConnectionPool):
    ConnectionCls = _Connection


class _SecurePool(_LeasedPool, HTTPSConnectionPool):
    ConnectionCls = _SecureConnection


def _socks_pools() -> Dict[str, Any]:
    from urllib3.contrib.socks import SOCKSConnection, SOCKSHTTPSConnection

    plain = type("_SocksConnection", (_LeasedOverSocks, SOCKSConnection), {})
    secure = type("_SecureSocksConnection", (_LeasedOverSocks, _LeasedTls, SOCKSHTTPSConnection), {})
    return {
        "http": type("_SocksPool", (_LeasedPool, HTTPConnectionPool), {"ConnectionCls": plain}),
        "https": type("_SecureSocksPool", (_LeasedPool, HTTPSConnectionPool), {"ConnectionCls": secure}),
    }


class CancellableAdapter(HTTPAdapter):
    """Makes the requests of a `requests.Session` that run within `bound()` cancellable.

    Never retries: urllib3 sleeps between tries, for hours if a server says so, and would retry the
    error that a cancel makes. The pool doesn't block, as that wait could not be woken either.
    """

    def __init__(self, *, pool_maxsize: int = 64) -> None:
        self._bindings: _Bindings = {}
        super().__init__(pool_maxsize=pool_maxsize, max_retries=0, pool_block=False)

    @contextlib.contextmanager
    def bound(self, lease: Lease, *, silence: Optional[float] = None) -> Iterator[None]:
        """Have the requests that this thread makes in the block use `lease`.

        `silence` is the longest time in seconds in which no byte of a request's body can be sent. The
        lease may outlive the block: a streamed answer's connection stays tied to it.
        """
        number = threading.get_ident()
        self._bindings[number] = lease, silence
        try:
            yield
        finally:
            del self._bindings[number]

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(*args, **kwargs)
        self._adopt(self.poolmanager, {"http": _Pool, "https": _SecurePool})

    def proxy_manager_for(self, proxy: str, **kwargs: Any) -> Any:
        manager = super().proxy_manager_for(proxy, **kwargs)
        socks = proxy.lower().startswith("socks")
        self._adopt(manager, _socks_pools() if socks else {"http": _Pool, "https": _SecurePool})
        return manager

    def close(self) -> None:
        """Close the idle connections, and those in use when their requests have ended."""
        # By itself urllib3 closes a pool when the collector finds it, so whenever that may be.
        for manager in (self.poolmanager, *self.proxy_manager.values()):
            for key in manager.pools.keys():
                pool = manager.pools.get(key)
                if pool is not None:
                    pool.close()
        super().close()

    def _adopt(self, manager: Any, pools: Dict[str, Any]) -> None:
        manager.pool_classes_by_scheme = {
            scheme: functools.partial(pool, self._bindings) for scheme, pool in pools.items()
        }
