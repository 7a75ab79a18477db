"""Connects through a SOCKS proxy, woken by a token like every other connect. It knows no HTTP.

PySocks connects to the proxy itself, and blocks. So its socket is connected here first, and gets a
`connect` below PySocks' own that does nothing; what is left for PySocks is to negotiate.
"""

import importlib
import socket
from typing import Any, Callable, Mapping, Optional, Tuple

from syncagent.boundary.http import dial
from syncagent.cancel import CancellationToken

__all__ = ["connect"]


def connect(
    target: Tuple[str, int],
    *,
    proxy: Mapping[str, Any],
    token: CancellationToken,
    attach: Callable[[socket.socket], None],
    timeout: Optional[float] = None,
    source_address: Any = None,
    options: Any = (),
) -> socket.socket:
    """A socket that reaches `target` through `proxy`, which is described in urllib3's words.

    `attach` is called when the proxy is reached: from then on a cancel must shut the socket down.
    Raises `OSError`, as which PySocks' errors count, or `Cancelled`.
    """
    socks: Any = importlib.import_module("socks")
    version, remote = proxy["socks_version"], proxy["rdns"]
    host, port = target
    if not remote:
        host = _resolved(host, port, token, only_v4=version == socks.PROXY_TYPE_SOCKS4)
    where = (proxy["proxy_host"].strip("[]"), int(proxy["proxy_port"] or 1080))
    sock: Any = dial.connect(
        dial.resolve(*where, token=token),
        token=token,
        timeout=timeout,
        source_address=source_address,
        options=options,
        make=type("_Socket", (socks.socksocket, _Connected), {}),
    )
    try:
        attach(sock)
        sock.set_proxy(version, *where, remote, proxy["username"], proxy["password"])
        sock.connect((host, port))
        token.raise_if_cancelled()
    except BaseException:
        sock.close()
        raise
    connected: socket.socket = sock
    return connected


class _Connected(socket.socket):
    """What PySocks' class stands on: it is connected to the proxy already."""

    def connect(self, address: Any) -> None:
        pass


def _resolved(host: str, port: int, token: CancellationToken, *, only_v4: bool) -> str:
    addresses = dial.resolve(host, port, token=token)
    usable = [item for item in addresses if item[0] == socket.AF_INET] if only_v4 else addresses
    if not usable:
        raise socket.gaierror(socket.EAI_NONAME, "the host has no IPv4 address, and SOCKS4 takes no other")
    return str(usable[0][4][0])
