"""Who drives which session: one lock file for each open store, held by the kernel until death.

It knows the table of runners and `flock`, not what a session holds. A session's row names a runner;
the runner is alive while the lock on its file is. No pid is compared, so one that is used again
fools nobody. What makes a wrong guess harmless is the epoch, which every write checks.
"""

import contextlib
import fcntl
import os
import socket
import sqlite3
import time
from typing import Optional

import attrs

from syncagent.boundary.store.files import Places
from syncagent.boundary.store.forks import ForkGuard

__all__ = ["Holder", "RunnerLock", "enter_runner", "find_holder", "forget_dead_runners"]


@attrs.frozen(kw_only=True)
class Holder:
    """The process that drives a session. `known`: it was asked and lives; if not, it can't be asked."""

    pid: int
    host: str
    known: bool


@attrs.frozen(kw_only=True)
class RunnerLock:
    """This process's own lock file: as long as it is held, its sessions are live."""

    name: str
    path: str
    fd: int

    @classmethod
    def take(cls, places: Places, guard: ForkGuard) -> "RunnerLock":
        """Make and lock a file of a name that nobody had. Raises `OSError`."""
        name = f"{os.getpid()}-{os.urandom(6).hex()}"
        path = os.path.join(places.runners, name)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        guard.descriptors.add(fd)
        lock = cls(name=name, path=path, fd=fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            lock.drop(guard)
            raise
        return lock

    def drop(self, guard: ForkGuard) -> None:
        """Let the lock go. The sessions that name its runner are cold from now on."""
        with contextlib.suppress(OSError):  # somebody removed it; its name is never used again
            os.unlink(self.path)
        guard.descriptors.discard(self.fd)
        os.close(self.fd)


def enter_runner(conn: sqlite3.Connection, lock: RunnerLock) -> int:
    """Write the row of a held lock and return its number; the caller's transaction is open."""
    row = (os.getpid(), socket.gethostname(), _boot_id(), int(time.time() * 1000), lock.name)
    cursor = conn.execute("INSERT INTO runners(pid, host, boot, started, lock) VALUES (?, ?, ?, ?, ?)", row)
    assert cursor.lastrowid is not None
    return cursor.lastrowid


def find_holder(conn: sqlite3.Connection, places: Places, runner: Optional[int]) -> Optional[Holder]:
    """Who is alive behind a runner's number; None if nobody is.

    A process on another machine can't be asked, nor one of a user who lets nobody look at its lock:
    it counts as alive and isn't `known` to be.
    """
    if runner is None:
        return None
    query = "SELECT pid, host, boot, lock FROM runners WHERE id = ?"
    row = conn.execute(query, (runner,)).fetchone()
    if row is None:
        return None
    pid, host, boot, lock = row
    locked = _is_locked(os.path.join(places.runners, lock)) if _is_this_machine(host, boot) else None
    return None if locked is False else Holder(pid=pid, host=host, known=locked is True)


def forget_dead_runners(conn: sqlite3.Connection, places: Places) -> None:
    """Remove the rows and files that killed processes of this machine left; a transaction is open."""
    for runner, lock in conn.execute("SELECT id, lock FROM runners").fetchall():
        if find_holder(conn, places, runner) is None:
            conn.execute("DELETE FROM runners WHERE id = ?", (runner,))
            with contextlib.suppress(OSError):  # gone already
                os.unlink(os.path.join(places.runners, lock))


def _is_locked(path: str) -> Optional[bool]:
    """Whether its owner lives; None if it can't be asked.

    With a shared lock, so that two who ask at once don't see each other.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        return None  # another user's
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


def _is_this_machine(host: str, boot: str) -> bool:
    """The same kernel, in a container of another name too; or the same machine started anew."""
    return bool(boot) and boot == _boot_id() or host == socket.gethostname()


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""  # not Linux: the host's name has to do
