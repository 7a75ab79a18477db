"""The descriptors of one call: both ends of each, and whose they are. It knows no process.

`theirs` goes to the supervisor and on to the guard, in this order: request, standard input, output,
control, and what the caller shares with the program, if anything. Everything of ours is non-blocking.
"""

import contextlib
import os
import signal
import socket
import sys
from typing import Callable, Iterator, List, Optional, Tuple

__all__ = ["NO_SIGPIPE", "Wires", "sigpipe_held"]

NO_SIGPIPE = getattr(socket, "MSG_NOSIGNAL", 0)
F_SETPIPE_SZ = 1031  # fcntl has the name from Python 3.10 on
PIPE_SIZE = 1 << 20


class Wires:
    """The ends of one call; each is closed once, at the latest by `close`.

    `share` is a descriptor of the caller's, who keeps it and closes it.
    """

    def __init__(self, *, feed: bool, share: Optional[int] = None) -> None:
        self._theirs: List[Callable[[], object]] = []
        self.control: Optional[socket.socket] = None
        self.request: Optional[socket.socket] = None
        self.stdin: Optional[int] = None
        self.output: Optional[int] = None
        self.theirs: List[int] = []
        try:
            self.request, request = self._pair()
            if feed:
                reader, self.stdin = self._pipe()
                os.set_blocking(self.stdin, False)
            else:
                reader = os.open(os.devnull, os.O_RDONLY)
                self._theirs.append(lambda: os.close(reader))
            self.output, writer = self._pipe(ours=0)
            os.set_blocking(self.output, False)
            _widen(self.output)
            self.control, control = self._pair()
            self.theirs = [request, reader, writer, control]
            if share is not None:
                self.theirs.append(share)
        except BaseException:  # no more descriptors: give those back that we got
            self.close()
            raise

    def _pair(self) -> Tuple[socket.socket, int]:
        ours, theirs = socket.socketpair()
        self._theirs.append(theirs.close)
        ours.setblocking(False)
        return ours, theirs.fileno()

    def _pipe(self, *, ours: int = 1) -> Tuple[int, int]:
        """A pipe as (reader, writer); the other end than `ours` is noted as theirs."""
        ends = os.pipe()
        self._theirs.append(lambda: os.close(ends[1 - ours]))
        return ends

    def close_theirs(self) -> None:
        """Our copies of what was handed over; while we hold them no end comes."""
        for close in self._theirs:
            close()
        self._theirs.clear()

    def close_request(self) -> None:
        if self.request is not None:
            with contextlib.suppress(OSError):  # a copy in a forked child must not delay the end
                self.request.shutdown(socket.SHUT_WR)
            self.request.close()
            self.request = None

    def close_stdin(self) -> None:
        if self.stdin is not None:
            os.close(self.stdin)
            self.stdin = None

    def close_output(self) -> None:
        if self.output is not None:
            os.close(self.output)
            self.output = None

    def close(self) -> None:
        """Close all that is open; without the control socket the guard kills what it has."""
        self.close_theirs()
        self.close_request()
        self.close_stdin()
        self.close_output()
        if self.control is not None:
            self.control.close()
            self.control = None


def _widen(pipe: int) -> None:
    """Give a flood of output fewer, larger reads; a refusal (the user's limit) is no harm."""
    if sys.platform.startswith("linux"):
        import fcntl

        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, F_SETPIPE_SZ, PIPE_SIZE)


@contextlib.contextmanager
def sigpipe_held() -> Iterator[None]:
    """Keep SIGPIPE from this thread: a host that has set it to its default would die of a write."""
    if signal.getsignal(signal.SIGPIPE) != signal.SIG_DFL:
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGPIPE])
    try:
        yield
    finally:
        if signal.SIGPIPE not in before:
            if signal.SIGPIPE in signal.sigpending() and hasattr(signal, "sigtimedwait"):
                signal.sigtimedwait([signal.SIGPIPE], 0)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
