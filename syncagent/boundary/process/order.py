"""What a guard is asked to start, as bytes. It knows no descriptor and no process."""

import json
import math
import os
from typing import List, Mapping, Optional, Sequence

from syncagent.seconds import check_seconds

__all__ = ["encode", "encode_lookup"]

#: Seconds; a guard's clock, that of `poll`, counts milliseconds in 31 bits.
LONGEST = 1e6


def encode(
    argv: Sequence[str],
    cwd: Optional[str],
    env: Optional[Mapping[str, str]],
    grace: float,
    linger: float,
) -> bytes:
    """The request that a guard reads. Bytes go as Latin-1, so that no locale can change them."""
    if isinstance(argv, (str, bytes)) or not argv:
        raise ValueError(f"argv is a list of texts, the program first, not {argv!r}")
    for name, given in (("grace", grace), ("linger", linger)):
        if check_seconds(name, given) is None or not 0 <= given < math.inf:
            raise ValueError(f"{name} is seconds from 0 up, not {given!r}")
    order = {
        "argv": [_plain(text) for text in argv],
        "cwd": _plain(os.getcwd() if cwd is None else cwd),
        "env": _pairs(os.environ if env is None else env),
        "grace": min(grace, LONGEST),
        "linger": min(linger, LONGEST),
    }
    return json.dumps(order).encode("ascii")


def encode_lookup(host: str, port: int) -> bytes:
    """The request to look a name up, in this process's folder and environment. `host` is ASCII.

    There is no grace: a lookup has nothing to put away.
    """
    try:
        cwd = os.getcwd()
    except OSError:  # it's gone, and only a relative HOSTALIASES needs it
        cwd = "/"
    order = {
        "resolve": [host, port],
        "cwd": _plain(cwd),
        "env": _pairs(os.environ),
        "grace": 0.0,
        "linger": 0.0,
    }
    return json.dumps(order).encode("ascii")


def _pairs(env: Mapping[str, str]) -> List[List[str]]:
    pairs = list(env.items())
    for key, _ in pairs:
        if "=" in key or not key:
            raise ValueError(f"{key!r} is no name of an environment variable")
    return [[_plain(key), _plain(value)] for key, value in pairs]


def _plain(text: str) -> str:
    try:
        data = os.fsencode(text)
    except UnicodeEncodeError:
        try:
            data = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise ValueError("a lone surrogate can't be passed to a program") from None
    if b"\0" in data:
        raise ValueError("a NUL character can't be passed to a program")
    return data.decode("latin-1")
