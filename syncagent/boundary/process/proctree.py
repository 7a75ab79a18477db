"""Processes as the kernel shows them: list, watch and signal them, and never a wrong one.

Part of the supervisor's child program: it imports the standard library alone.

A pid is signalled only while it can't be another process's: a child that isn't reaped keeps its
pid, and everything else is signalled through a pidfd that was checked after it was opened.
"""

import os
import select
import signal
import sys
from typing import Any, Dict, List, NamedTuple, Optional, Set

LINUX = sys.platform.startswith("linux")
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """One process: a pid alone may be reused, the start time (in clock ticks) tells them apart."""

    pid: int
    start: int


class Stat:
    """What /proc/PID/stat says of a process."""

    def __init__(self, text: bytes) -> None:
        # The name stands in brackets and may hold anything, brackets and blanks too.
        fields = text.rpartition(b")")[2].split()
        self.parent = int(fields[1])
        self.group = int(fields[2])
        self.start = int(fields[19])
        self.held = fields[0] in (b"T", b"t")  # by SIGSTOP, or by a debugger
        # A process whose first thread has ended looks like a zombie while its other threads run.
        self.living = fields[0] not in (b"Z", b"X", b"x") or int(fields[17]) > 1


def load_libc() -> Any:
    """The C library, for `prctl`; None where ctypes or the library isn't there."""
    if not LINUX:
        return None
    try:
        import ctypes

        return ctypes.CDLL(None)
    except (ImportError, OSError):  # a daemon can escape then; groups are killed all the same
        return None


def prctl(libc: Any, option: int, value: int) -> None:
    """Call prctl(2) where it is there."""
    if libc is not None:
        libc.prctl(option, value, 0, 0, 0)


def death_watch(pid: int) -> int:
    """A descriptor that becomes readable when the process dies; -1 where there is none."""
    try:
        if hasattr(os, "pidfd_open"):
            return int(os.pidfd_open(pid))
        if sys.platform == "darwin":
            queue = select.kqueue()
            event = select.kevent(pid, select.KQ_FILTER_PROC, select.KQ_EV_ADD, fflags=select.KQ_NOTE_EXIT)
            queue.control([event], 0)
            return os.dup(queue.fileno())  # the object closes its own when it is forgotten
    except OSError:  # an old kernel, or a filter that forbids it: the end of the sockets must do
        pass
    return -1


def close_all_but(keep: Set[int]) -> None:
    """Close every descriptor above 2 that isn't in `keep`, however high its number is."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            numbers = [int(name) for name in os.listdir(folder)]
            break
        except (OSError, ValueError):
            continue
    else:
        numbers = list(range(3, os.sysconf("SC_OPEN_MAX")))
    for number in numbers:
        if number > 2 and number not in keep:
            try:
                os.close(number)
            except OSError:  # the descriptor of the listing itself, or a gap in the range
                pass


def wake_on_child() -> int:
    """The reading end of a pipe that gets a byte with each SIGCHLD."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def drain(fd: int) -> None:
    """Empty a wake pipe."""
    try:
        while len(os.read(fd, 4096)) == 4096:
            pass
    except BlockingIOError:
        pass


def stat_of(pid: int) -> Optional[Stat]:
    """The state of a process, None if there is none of that pid."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return Stat(file.read())
    except (OSError, IndexError, ValueError):
        return None


def sees_children() -> bool:
    """Whether the kernel lists children here."""
    return os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def children_of(pid: int) -> List[int]:
    """The children of all threads of a process; one that is forked or ends meanwhile may be missed."""
    found: List[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found.extend(map(int, file.read().split()))
    except OSError:  # it has ended
        pass
    return found


def descendants(skip: Set[int]) -> Dict[Process, Stat]:
    """The living descendants of this process, none in or below `skip`; zombies aren't living."""
    me = os.getpid()
    found: Dict[Process, Stat] = {}
    todo = [(me, child) for child in children_of(me) if child not in skip]
    while todo:
        parent, pid = todo.pop()
        stat = stat_of(pid)
        # An orphan moves up to us. With any other parent the pid belongs to a stranger by now.
        if stat is None or stat.parent not in (parent, me) or Process(pid, stat.start) in found:
            continue
        if stat.living:
            found[Process(pid, stat.start)] = stat
        todo.extend((pid, child) for child in children_of(pid))
    return found


def send(process: Process, stat: Stat, signum: int) -> bool:
    """Signal a descendant, and never another process; False if that isn't permitted."""
    fd = -1
    if hasattr(os, "pidfd_open") and hasattr(signal, "pidfd_send_signal"):
        try:
            fd = os.pidfd_open(process.pid)
        except ProcessLookupError:
            return True
        except OSError:  # an old kernel, or a container's filter, which may say EPERM
            pass
    if fd < 0:
        return _send_to_child(process, stat, signum, default=True)
    try:
        now = stat_of(process.pid)
        if now is not None and now.start == process.start:
            signal.pidfd_send_signal(fd, signum)
    except ProcessLookupError:
        pass
    except OSError:
        return _send_to_child(process, stat, signum, default=False)
    finally:
        os.close(fd)
    return True


def _send_to_child(process: Process, stat: Stat, signum: int, *, default: bool) -> bool:
    """Without a pidfd only our own unreaped children are safe; the others move up to us in time."""
    if stat.parent != os.getpid():
        return default
    try:
        os.kill(process.pid, signum)
    except PermissionError:
        return False
    except ProcessLookupError:
        pass
    return True
