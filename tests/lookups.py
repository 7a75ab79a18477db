"""Lookups that hang for as long as a test wants, for an ordinary user and without a name server.

The C library opens the file that HOSTALIASES names when it resolves a name without a dot. Where that
file is a pipe nobody writes to, the lookup hangs in the open, inside `getaddrinfo`.
"""

import contextlib
import os
import pathlib
from typing import Iterator, List

import pytest
from processes import until

#: A name without a dot, which no hosts file has.
NAME = "syncagent-hangs"


class Pipe:
    """The file of aliases."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self._ends: List[int] = []
        os.mkfifo(path)

    def wait_entered(self) -> None:
        """Wait until a lookup hangs in it, and leave it hanging there."""

        def opened() -> bool:
            with contextlib.suppress(OSError):  # ENXIO: no reader
                self._ends.append(os.open(self.path, os.O_WRONLY | os.O_NONBLOCK))
            return bool(self._ends)

        until(opened, "a lookup reads the aliases")

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


@contextlib.contextmanager
def hanging(folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    """While the block runs, looking `NAME` up hangs."""
    pipe = Pipe(folder / "aliases")
    monkeypatch.setenv("HOSTALIASES", str(pipe.path))
    try:
        yield pipe
    finally:
        monkeypatch.delenv("HOSTALIASES")
        pipe.close()
