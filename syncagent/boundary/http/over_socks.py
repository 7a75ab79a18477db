"""Connects through a SOCKS proxy, woken by a token like every other connect. It knows no HTTP.

PySocks connects to the proxy itself, and blocks. So its socket is connected here first, and gets a
`connect` below PySocks' own that does nothing; what is left for PySocks is to negotiate. It looks no
name up either: the proxy's is looked up here, and so is the target's with `socks4://` and `socks5://`;
with `socks4a://` and `socks5h://` the proxy does that, and the wait for it is one of the negotiation.
"""

import importlib
import socket
from typing import Any, Callable, Mapping, Optional, Tuple

from syncagent.boundary.http.names import Names
from syncagent.cancel import CancellationToken

__all__ = ["connect"]


def connect(
    target: Tuple[str, int],
    *,
    proxy: Mapping[str, Any],
    token: CancellationToken,
    attach: Callable[[socket.socket], None],
    names: Names,
    timeout: Optional[float] = None,
    source_address: Any = None,
    options: Any = (),
) -> socket.socket:
    """A socket that reaches `target` through `proxy`, which is described in urllib3's words.

    Names are looked up by `names`. `attach` is called when the proxy is reached: from then on a cancel
    must shut the socket down. Raises `OSError`, as which PySocks' errors count, or `Cancelled`.
    """
    socks: Any = importlib.import_module("socks")
    version, remote = proxy["socks_version"], proxy["rdns"]
    host, port = target
    reached = host
    if not remote:
        reached = _resolved(host, port, names, token, timeout, only_v4=version == socks.PROXY_TYPE_SOCKS4)
    where = (proxy["proxy_host"].strip("[]"), int(proxy["proxy_port"] or 1080))
    sock: Any = names.connect(
        *where,
        token=token,
        timeout=timeout,
        source_address=source_address,
        options=options,
        make=type("_Socket", (socks.socksocket, _Connected), {}),
    )
    try:
        attach(sock)
        sock.set_proxy(version, *where, remote, proxy["username"], proxy["password"])
        sock.connect((reached, port))
        token.raise_if_cancelled()
    except BaseException:
        sock.close()
        names.forget(host, port)
        raise
    connected: socket.socket = sock
    return connected


class _Connected(socket.socket):
    """What PySocks' class stands on: it is connected to the proxy already."""

    def connect(self, address: Any) -> None:
        pass


def _resolved(
    host: str, port: int, names: Names, token: CancellationToken, timeout: Optional[float], *, only_v4: bool
) -> str:
    addresses = names.resolve(host, port, token=token, timeout=timeout)
    usable = [item for item in addresses if item[0] == socket.AF_INET] if only_v4 else addresses
    if not usable:
        raise socket.gaierror(socket.EAI_NONAME, "the host has no IPv4 address, and SOCKS4 takes no other")
    return str(usable[0][4][0])
