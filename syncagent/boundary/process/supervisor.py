"""The child program that owns tool processes: one supervisor per runtime, one guard per tool.

Run as `python -I -S supervisor.py FD RUNTIME_PID`. It imports the standard library and the two
files beside it, knows no token, log or session, and has one thread, so that it may fork.

For each tool the supervisor gets one byte and four descriptors (request, stdin, output, control), or
five, of which the tool itself gets the last as number 3, and forks a guard. The guard is the subreaper
of exactly one tool: whatever the tool starts, daemons too, is a descendant of the guard, can be found
and is killed. The supervisor is a second subreaper: it kills what a guard that was killed has left.
Both see the death of the runtime by its pidfd and by the end of their sockets, which a copy in a forked
child of the runtime would delay for ever.

On the control socket the runtime says T (TERM, and KILL after the grace), K (KILL) and 0 (no grace
from now on). The guard says, a line each: `hello`; `pid N`; `stopping`, a stop reached the tool while
it ran; `exit`, the tool itself has ended; `error TEXT`, it can't be started; and at last
`gone STATUS STOPPED LEFT`, when nobody is left. STATUS is an exit code, a negative signal or `none`,
STOPPED how many processes outlived the tool and were stopped, LEFT how many refused to go. The
supervisor has the last word: `over` when it has reaped the guard; `lost STATUS` for a guard that
died, when the whole tree of it is dead.
"""

import array
import os
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Dict, List

if TYPE_CHECKING or __package__:
    from syncagent.boundary.process import guard, proctree
else:
    # -I leaves this file's folder out. It goes last, so that nothing in it hides the standard library.
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import guard
    import proctree

#: A terminal or a service manager sends these to everybody; guards end when the runtime has.
SHIELDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
HUNT_MS = 5
GUARD_FAILED = 70


class Supervisor:
    """Forks guards, reaps them, and hunts what a dead guard has left."""

    def __init__(self, fd: int, runtime_pid: int, libc: Any) -> None:
        self.socket = socket.socket(fileno=fd)
        self.socket.setblocking(False)
        self.runtime_pid = runtime_pid
        self.libc = libc
        self.runtime = proctree.death_watch(runtime_pid)
        self.wake = proctree.wake_on_child()
        self.guards: Dict[int, int] = {}  # pid to our copy of its control socket
        self.lost: Dict[int, int] = {}  # such copies of guards that died, to their statuses
        self.ending = os.getppid() != runtime_pid  # it died before we began to watch
        self.poll = select.poll()
        for number in (fd, self.wake, self.runtime):
            if number >= 0:
                self.poll.register(number, select.POLLIN)

    def run(self) -> None:
        """Serve until the runtime has gone and no guard is left."""
        while not self.ending or self.guards or self.lost:
            ready = [number for number, _ in self.poll.poll(HUNT_MS if self.lost else None)]
            if self.wake in ready:
                proctree.drain(self.wake)
            if self.runtime in ready:
                self.poll.unregister(self.runtime)
                self.end()
            if not self.ending and self.socket.fileno() in ready:
                self.accept()
            self.reap()
            if self.lost:
                self.hunt()

    def end(self) -> None:
        if not self.ending:
            self.ending = True
            self.poll.unregister(self.socket.fileno())

    def accept(self) -> None:
        fds = array.array("i")
        room = socket.CMSG_SPACE(5 * fds.itemsize)
        try:
            data, notes, _, _ = self.socket.recvmsg(1, room, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
        except BlockingIOError:
            return
        except OSError:
            data, notes = b"", []
        for level, kind, payload in notes:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                fds.frombytes(payload[: len(payload) - len(payload) % fds.itemsize])
        if not data:
            self.end()
        # With fewer (we are out of descriptors) closing them tells the runtime.
        elif len(fds) in (4, 5) and self.start(list(fds)):
            del fds[3]
        for number in fds:
            os.close(number)

    def start(self, fds: List[int]) -> bool:
        """Fork a guard; True if the control socket is kept, until what a lost guard left is dead."""
        try:
            pid = os.fork()
        except OSError as exc:
            os.write(fds[3], f"error cannot start a guard: {exc.strerror}\n".encode())
            return False
        if pid == 0:
            status = GUARD_FAILED
            try:
                signal.set_wakeup_fd(-1)
                # A pidfd is inherited, a kqueue is not.
                runtime = self.runtime if proctree.LINUX else proctree.death_watch(self.runtime_pid)
                guard.Guard(fds, runtime, self.libc).run()
                status = 0
            finally:
                os._exit(status)
        self.guards[pid] = fds[3]
        return True

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            control = self.guards.pop(pid, -1)
            if control >= 0 and status:
                self.lost[control] = os.waitstatus_to_exitcode(status)
            elif control >= 0:
                self.leave(control, "over")

    def hunt(self) -> None:
        """KILL what lost guards have left, and say so once there is nothing.

        One that ends while we look hands its children to us unseen, so even a zombie means that we
        have to look again. Nobody but us takes a child from our list: an empty one is the truth.
        """
        for process, stat in proctree.descendants(set(self.guards)).items():
            proctree.send(process, stat, signal.SIGKILL)
        if set(proctree.children_of(os.getpid())) - set(self.guards):
            return
        for control, status in self.lost.items():
            self.leave(control, f"lost {status}")
        self.lost.clear()

    def leave(self, control: int, word: str) -> None:
        try:
            os.write(control, f"{word}\n".encode())
        except OSError:  # the runtime doesn't listen any more
            pass
        os.close(control)


def main() -> None:
    """Serve the runtime that started this process."""
    for signum in SHIELDED:
        signal.signal(signum, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # a thread of the runtime may have blocked SIGCHLD
    libc = proctree.load_libc()
    proctree.prctl(libc, proctree.PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor(int(sys.argv[1]), int(sys.argv[2]), libc)
    # The runtime reads standard error only to say why this program didn't start.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    os.close(null)
    supervisor.run()


if __name__ == "__main__":
    main()
