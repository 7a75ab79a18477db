"""Finds a host's addresses and connects to one of them, woken by a token. It knows no HTTP."""

import errno
import math
import os
import select
import socket
from typing import Any, Callable, List, Optional, Tuple

from syncagent.cancel import CancellationToken

__all__ = ["Addresses", "connect", "connect_socket", "numeric", "resolve"]

#: What `socket.getaddrinfo` returns.
Addresses = List[Tuple[Any, Any, int, str, Any]]


def numeric(host: str, port: int) -> Optional[Addresses]:
    """The address that `host` is, as `socket.getaddrinfo` gives it; None if it's a name."""
    try:
        return socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM, 0, socket.AI_NUMERICHOST)
    except socket.gaierror:
        return None
    except UnicodeError:  # a label that is empty or too long for a name
        raise socket.gaierror(socket.EAI_NONAME, "not a valid host name") from None


def resolve(host: str, port: int, *, token: CancellationToken) -> Addresses:
    """The addresses of `host`, as `socket.getaddrinfo` gives them. Raises `socket.gaierror`.

    A numeric address is returned at once. A name is looked up inline, which nothing can wake: a
    cancel is noticed when the resolver has answered or given up (glibc: 10 s with its defaults).
    `syncagent.boundary.http.names` has the way that can be woken.
    """
    try:
        found = numeric(host, port)
        token.raise_if_cancelled()
        return found or socket.getaddrinfo(host, port, 0, socket.SOCK_STREAM)
    finally:
        token.raise_if_cancelled()


def connect(
    addresses: Addresses,
    *,
    token: CancellationToken,
    timeout: Optional[float] = None,
    source_address: Any = None,
    options: Any = (),
    make: Callable[[Any, Any, int], socket.socket] = socket.socket,
) -> socket.socket:
    """Connect to the first address that accepts; `timeout` is in seconds and for each address.

    Raises `Cancelled` as soon as the token is cancelled, else the last address's `OSError`.
    """
    failure: OSError = OSError(errno.EADDRNOTAVAIL, "the host has no address")
    for family, kind, protocol, _, address in addresses:
        token.raise_if_cancelled()
        sock = None
        try:
            sock = make(family, kind, protocol)  # fails where the system lacks IPv6
            for option in options or ():
                sock.setsockopt(*option)
            if source_address:
                sock.bind(source_address)
            connect_socket(sock, address, token=token, timeout=timeout)
            return sock
        except OSError as exc:
            failure = exc
            if sock is not None:
                sock.close()
        except BaseException:
            if sock is not None:
                sock.close()
            raise
    try:
        raise failure
    finally:
        del failure  # it holds this frame, and the frame holds it


def connect_socket(
    sock: socket.socket, address: Any, *, token: CancellationToken, timeout: Optional[float]
) -> None:
    """Connect `sock`, which is left open whatever happens. Raises `OSError` or `Cancelled`."""
    if not hasattr(select, "poll"):  # Windows: not woken, but ended by the time-out
        sock.settimeout(timeout)
        socket.socket.connect(sock, address)
        token.raise_if_cancelled()
        return
    sock.setblocking(False)
    # The class's own method: a socket that speaks SOCKS has another one of that name.
    code = socket.socket.connect_ex(sock, address)
    if code in (errno.EINPROGRESS, errno.EWOULDBLOCK):
        poll = select.poll()
        poll.register(sock, select.POLLOUT)
        poll.register(token.fileno(), select.POLLIN)
        ready = poll.poll(None if timeout is None else math.ceil(timeout * 1000))
        token.raise_if_cancelled()
        if not ready:
            raise socket.timeout("timed out")
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if code:
        raise OSError(code, os.strerror(code))
    sock.settimeout(timeout)
