"""The supervisor process as the runtime holds it: start it, hand it calls, end and reap it.

It knows no call: it passes descriptors on.
"""

import array
import contextlib
import os
import select
import socket
import subprocess
import sys
from typing import Dict, Sequence

from syncagent.boundary.process.run import NeverStarted, ProcessError
from syncagent.boundary.process.wires import NO_SIGPIPE
from syncagent.cancel import CancellationToken

__all__ = ["Supervisor", "find_python"]

#: How long the supervisor may take to end once it has no work; it is killed then.
END_LIMIT = 5.0


class Supervisor:
    """The supervisor process and the socket to it; made by `start`, ended by `end`."""

    def __init__(self, child: "subprocess.Popen[bytes]", sock: socket.socket) -> None:
        self.child = child
        self.socket = sock

    @classmethod
    def start(cls) -> "Supervisor":
        program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "supervisor.py")
        if not os.path.isfile(program):
            raise ProcessError(f"cannot start child processes: {program} is no file (a zipped package?)")
        ours, theirs = socket.socketpair()
        try:
            child = subprocess.Popen(
                [find_python(), "-I", "-S", program, str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                cwd="/",
                env=_supervisor_env(),
            )
        except OSError as exc:
            ours.close()
            raise ProcessError(f"cannot start the supervisor of child processes: {exc}") from exc
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return cls(child, ours)

    @property
    def alive(self) -> bool:
        return self.child.poll() is None

    def send(self, fds: Sequence[int], token: CancellationToken) -> None:
        """Hand over one call: one byte, so it is sent whole or not at all.

        Raises `NeverStarted` when the supervisor is dead, `OSError` when the system refuses, and `Cancelled`.
        """
        note = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))]
        while True:
            try:
                self.socket.sendmsg([b"+"], note, NO_SIGPIPE)
                return
            except BlockingIOError:
                self._wait_for_room(token)
            except OSError as exc:
                # Another thread may have seen its death first, and have closed the socket.
                if isinstance(exc, ConnectionError) or self.socket.fileno() < 0:
                    raise NeverStarted(again=True) from None
                raise

    def _wait_for_room(self, token: CancellationToken) -> None:
        number = self.socket.fileno()
        if number < 0:  # closed meanwhile: the next try says so
            return
        poll = select.poll()
        poll.register(number, select.POLLOUT)
        poll.register(token.fileno(), select.POLLIN)
        poll.poll()
        token.raise_if_cancelled()

    def end(self) -> str:
        """End and reap it; return what it had to say on standard error."""
        # Not only close: a copy of the socket in a forked child would keep it open.
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()
        try:
            self.child.wait(END_LIMIT)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        assert self.child.stderr is not None
        if self.child.stderr.closed:  # an interpreter that ends finalizes its objects in any order
            return ""
        with self.child.stderr as stderr:
            os.set_blocking(stderr.fileno(), False)
            said = stderr.read(4096) or b""
        return said.decode("utf-8", "replace").strip()

    def forget(self) -> None:
        """In a forked child: drop our copies and leave the parent's supervisor alone."""
        self.socket.close()
        self.child.returncode = 0  # it is no child of ours to wait for
        if self.child.stderr is not None:
            self.child.stderr.close()


def find_python() -> str:
    """The interpreter for the supervisor. Raises `ProcessError` where Python is embedded."""
    candidates = [sys.executable or "", getattr(sys, "_base_executable", "") or ""]
    name = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    candidates += [os.path.join(prefix, "bin", name) for prefix in (sys.exec_prefix, sys.base_exec_prefix)]
    for path in candidates:
        looks = any(word in os.path.basename(path).lower() for word in ("python", "pypy", "graalpy"))
        if looks and os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.abspath(path)
    raise ProcessError(
        "cannot start child processes: no Python interpreter is known here"
        f" (sys.executable is {sys.executable!r}); an application that embeds Python can set it"
    )


def _supervisor_env() -> Dict[str, str]:
    """What an interpreter may need to start; keys and tokens of the host stay out of it."""
    return {k: v for k, v in os.environ.items() if k in ("PATH", "HOME") or k.startswith(("LD_", "DYLD_"))}
