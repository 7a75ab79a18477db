"""The names of one client: how they are looked up, and what is kept of that for a while.

It knows no HTTP. A numeric host needs no lookup. Other names are looked up in a child process, which
a cancel kills (`syncagent.boundary.process.names`), or with `dns="inline"` in this thread, which
nothing can wake.

Where no child process can be started (Windows, an embedded Python, a zipped package) the lookup
fails and says what to do, instead of going inline by itself: then a stop would work on one machine,
take ten seconds on another, and nobody would have been told. The way out is one argument.
"""

import socket
import time
from typing import Any, Dict, Optional, Tuple

import attrs

from syncagent.boundary.http import dial
from syncagent.boundary.http.failures import TransportError
from syncagent.boundary.process import ProcessError
from syncagent.boundary.process.names import look_up
from syncagent.cancel import CancellationToken

__all__ = ["KEPT", "LARGEST", "Names", "check_dns"]

#: Seconds for which addresses are used again; no lookup says how long they hold.
KEPT = 60.0
#: How many names are kept; the oldest makes room.
LARGEST = 64

_Kept = Dict[Tuple[str, int], Tuple[float, dial.Addresses]]


def check_dns(given: str) -> str:
    """`given` if it's a way to look names up. Raises `ValueError`."""
    if given not in ("child", "inline"):
        raise ValueError(f"dns is 'child' or 'inline', not {given!r}")
    return given


@attrs.define(eq=False)
class Names:
    """Looks names up and keeps the answers for `KEPT` seconds; only good ones, and at most `LARGEST`.

    For any number of threads. There is no lock, which a fork could find held: what is kept is never
    changed, but replaced. Threads that ask at the same moment each look the name up.
    """

    dns: str = attrs.field(default="child", converter=check_dns)
    _kept: _Kept = attrs.field(factory=dict, init=False, repr=False)

    def resolve(
        self, host: str, port: int, *, token: CancellationToken, timeout: Optional[float] = None
    ) -> dial.Addresses:
        """The addresses of `host`, as `socket.getaddrinfo` gives them; `timeout` is in seconds.

        Raises `Cancelled`, `socket.gaierror`, `socket.timeout`, and `TransportError` where no child
        process can be started. Inline there is no time-out.
        """
        token.raise_if_cancelled()
        numeric = dial.numeric(host, port)
        if numeric is not None:
            return numeric
        found = self._kept.get((host, port))
        if found is not None and time.monotonic() < found[0]:
            return found[1]
        if self.dns == "inline":
            addresses = dial.resolve(host, port, token=token)
        else:
            addresses = _look_up(host, port, token, timeout)
        self._keep(host, port, addresses)
        return addresses

    def connect(
        self,
        host: str,
        port: int,
        *,
        token: CancellationToken,
        timeout: Optional[float] = None,
        **options: Any,
    ) -> socket.socket:
        """Look `host` up and connect to it, with the options of `dial.connect`; raises like both.

        `timeout` is for the lookup and for each address.
        """
        addresses = self.resolve(host, port, token=token, timeout=timeout)
        try:
            return dial.connect(addresses, token=token, timeout=timeout, **options)
        except OSError:
            self.forget(host, port)
            raise

    def forget(self, host: str, port: int) -> None:
        """Look the name up anew the next time: nobody was met at its addresses."""
        self._kept = {key: value for key, value in self._kept.items() if key != (host, port)}

    def clear(self) -> None:
        """Forget all names."""
        self._kept = {}

    def _keep(self, host: str, port: int, addresses: dial.Addresses) -> None:
        now = time.monotonic()
        kept = {key: value for key, value in self._kept.items() if now < value[0] and key != (host, port)}
        for key in list(kept)[: max(0, len(kept) - LARGEST + 1)]:
            del kept[key]
        kept[host, port] = now + KEPT, addresses
        self._kept = kept


def _look_up(host: str, port: int, token: CancellationToken, timeout: Optional[float]) -> dial.Addresses:
    try:
        return look_up(host, port, token=token, timeout=timeout)
    except ProcessError as exc:
        text = (
            f"the name {host!r} can't be looked up in a child process: {exc}; with dns='inline' it is looked"
            " up without one, and a cancel then waits for the resolver"
        )
        raise TransportError(text, code="connection") from exc
