"""Looks host names up in a child process, so that a cancel ends it. It knows no connection.

The C library's `getaddrinfo` can't be woken: with a silent name server it takes 10 seconds by
default, and a thread that is left with it would outlive the turn. So the guard forks a child for the
lookup, as for a tool, which is killed and reaped in the same way. It asks what the process itself
would ask: the system's resolver, in this process's environment.
"""

import contextlib
import json
import socket
from typing import Any, List, Optional, Tuple

from syncagent.boundary.process.order import encode_lookup
from syncagent.boundary.process.run import ProcessError, ProcessResult
from syncagent.boundary.process.sharing import shared
from syncagent.cancel import CancellationToken

__all__ = ["look_up"]

#: Bytes of an answer: some ten thousand addresses.
_LARGEST = 1 << 20


def look_up(
    host: str, port: int, *, token: CancellationToken, timeout: Optional[float] = None
) -> List[Tuple[Any, Any, int, str, Any]]:
    """What `socket.getaddrinfo` gives for a stream to `host`, in its order.

    It uses the supervisor of the agents of this process; without one, one is started for the lookup.
    Raises `Cancelled` as soon as the token is cancelled, `socket.timeout` after `timeout` seconds,
    `socket.gaierror` as `getaddrinfo` does, and also, with `EAI_AGAIN`, if the child was killed or
    the system is out of processes; `ProcessError` where no child process can ever be started.
    """
    try:
        name = host.encode("idna").decode("ascii")
    except UnicodeError:  # a label that is empty or too long for a name
        raise socket.gaierror(socket.EAI_NONAME, "not a valid host name") from None
    token.raise_if_cancelled()
    try:
        with shared() as processes:
            result = processes.perform(
                encode_lookup(name, port), token=token, timeout=timeout, head=_LARGEST, tail=0
            )
    except ProcessError as exc:
        token.raise_if_cancelled()
        if exc.lost or isinstance(exc.__cause__, OSError):
            raise socket.gaierror(socket.EAI_AGAIN, f"the lookup could not be made: {exc}") from exc
        raise
    token.raise_if_cancelled()
    if result.timed_out:
        raise socket.timeout("the lookup of the name timed out")
    return _answer(result)


def _answer(result: ProcessResult) -> List[Tuple[Any, Any, int, str, Any]]:
    try:
        said = json.loads(result.output) if result.exit_code == 0 else {}
    except ValueError:
        said = {}
    if "error" in said:
        kind, number, text = said["error"]
        raise (socket.gaierror if kind == "resolver" else OSError)(number, text)
    if "addresses" not in said:
        how = f"signal {result.signal}" if result.signal else f"status {result.exit_code}"
        raise socket.gaierror(socket.EAI_AGAIN, f"the child that looked the name up died ({how})")
    family, kind = socket.AddressFamily, socket.SocketKind
    return [
        (_named(family, item[0]), _named(kind, item[1]), item[2], item[3], tuple(item[4]))
        for item in said["addresses"]
    ]


def _named(names: Any, number: int) -> Any:
    """The member of an enumeration, as the `socket` module gives it, or the number itself."""
    with contextlib.suppress(ValueError):
        return names(number)
    return number
