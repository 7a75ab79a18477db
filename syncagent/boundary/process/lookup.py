"""Looks a name up in a child process, which is killed when nobody wants the answer any more.

Part of the supervisor's child program: it imports the standard library alone. The order and the
answer are those of `names`.
"""

import json
import os
import socket
from typing import Any, Dict

__all__ = ["answer", "enter"]


def enter(order: Dict[str, Any]) -> None:
    """Take on the environment and folder of the runtime: the C library's resolver reads them.

    It reads RES_OPTIONS, LOCALDOMAIN, HOSTALIASES and others at its first lookup, which is the one
    that follows: the supervisor makes none.
    """
    os.environb.clear()
    for key, value in order["env"]:
        os.environb[key.encode("latin-1")] = value.encode("latin-1")
    try:
        os.chdir(order["cwd"].encode("latin-1"))
    except OSError:  # it's gone: then only a relative HOSTALIASES would have meant something
        pass


def answer(order: Dict[str, Any]) -> bytes:
    """What `socket.getaddrinfo` says to the order, its error too."""
    host, port = order["resolve"]
    try:
        # As bytes, or the codec of international names would be imported first: the runtime has used it.
        found = socket.getaddrinfo(host.encode("ascii"), port, 0, socket.SOCK_STREAM)
    except OSError as exc:
        kind = "resolver" if isinstance(exc, socket.gaierror) else "system"
        return json.dumps({"error": [kind, exc.errno, exc.strerror]}).encode("ascii")
    return json.dumps({"addresses": found}).encode("ascii")
