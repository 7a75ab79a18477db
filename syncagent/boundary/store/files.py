"""The files of a store: where they are, how they are made, whether they are still the same.

It knows paths, inodes and `flock`; it never opens the database file itself once SQLite may have it
open: closing any descriptor of a file drops all POSIX locks that this process holds on it, SQLite's
too.
"""

import contextlib
import errno
import fcntl
import os
import time
from typing import Optional, Tuple, Union

import attrs

from syncagent.boundary.store.faults import Patience
from syncagent.errors import StoreReplaced

__all__ = ["Gate", "Places", "Watch", "make_database_file", "make_folder"]


@attrs.frozen
class Places:
    """Where a store's files are. `path` is absolute and free of links.

    SQLite names the log after the real file, and two names of one store must lead to one folder of
    runners, or each would take the other's sessions for cold.
    """

    path: str

    @classmethod
    def of(cls, path: Union[str, "os.PathLike[str]"]) -> "Places":
        given = os.fspath(path)
        if not isinstance(given, str) or not given or given == ":memory:" or "\0" in given:
            raise ValueError(f"a store is a file: {ascii(given)} is no path of one")
        return cls(os.path.realpath(given))

    @property
    def wal(self) -> str:
        return self.path + "-wal"

    @property
    def runners(self) -> str:
        return self.path + "-runners"

    @property
    def gate(self) -> str:
        return os.path.join(self.runners, "gate")

    @property
    def private(self) -> Tuple[str, ...]:
        """What nobody but the store may touch, whether it is there or not."""
        return (self.path, self.wal, self.path + "-shm", self.path + "-journal", self.runners)

    def wal_size(self) -> int:
        """The size of the write-ahead log in bytes, 0 without one."""
        try:
            return os.stat(self.wal).st_size
        except FileNotFoundError:
            return 0

    def is_missing(self) -> bool:
        """Whether there is no database, or an empty file that SQLite would take for a new one."""
        try:
            return os.stat(self.path).st_size == 0 and self.wal_size() == 0
        except (FileNotFoundError, NotADirectoryError):
            return True
        except OSError:
            return False  # nobody knows; SQLite will say


def make_folder(path: str) -> None:
    """Make a folder that only its owner can look into; one that is there is left as it is."""
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
    except FileExistsError as exc:
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), exc.filename) from None


def make_database_file(path: str) -> None:
    """Make the empty database file, readable by its owner only, unless it is there.

    It appears under its name only after our descriptor of it is closed: another thread may have
    SQLite open it at once.
    """
    if os.path.exists(path):
        return
    draft = f"{path}.{os.getpid()}-{os.urandom(4).hex()}"
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # somebody else was faster
    except OSError:
        # A file system without hard links.
        with contextlib.suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    finally:
        os.unlink(draft)


class Watch:
    """Notices that the database or its log was deleted or replaced while it is open.

    Writes to a file that has no name any more succeed, and vanish.
    """

    def __init__(self, places: Places) -> None:
        self._places = places
        self._database = _inode(places.path)
        self._wal: Optional[Tuple[int, int]] = None

    def check(self) -> int:
        """Raise `StoreReplaced` if the files are others; return the size of the log in bytes."""
        path = self._places.path
        if self._database is None or _inode(path) != self._database:
            raise _replaced(path, path, "database")
        try:
            found: Optional[os.stat_result] = os.stat(self._places.wal)
        except OSError:
            found = None
        now = (found.st_dev, found.st_ino) if found is not None else None
        if self._wal is None:
            self._wal = now
        elif now != self._wal:
            raise _replaced(path, self._places.wal, "log")
        return found.st_size if found is not None else 0


def _replaced(path: str, file: str, what: str) -> StoreReplaced:
    text = f"{file}: the {what} was deleted or replaced while it was open: reopen the store"
    return StoreReplaced(text, path=path)


def _inode(path: str) -> Optional[Tuple[int, int]]:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino)


class Gate:
    """Lets one process at a time write or checkpoint; the others wait in short, even slices.

    SQLite's own wait sleeps longer each time, so that the unlucky wait for seconds. Only order and
    fairness come from the gate: what keeps writers apart is SQLite's lock. The holder's pid stands in
    the file, for those who wait.
    """

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def enter(self, patience: Patience) -> None:
        """Wait for the gate. Raises `StoreBusy` and `Cancelled` as `patience` has it."""
        pause = 0.0005
        while not self._try_enter():
            patience.check(self.holder())
            time.sleep(pause)
            pause = min(pause * 2, 0.004)
        with contextlib.suppress(OSError):  # a full disk: the pid is only a courtesy
            os.pwrite(self.fd, b"%-20d" % os.getpid(), 0)

    def _try_enter(self) -> bool:
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def leave(self) -> None:
        fcntl.flock(self.fd, fcntl.LOCK_UN)

    def holder(self) -> Optional[int]:
        """The process that entered last, None if nobody knows."""
        word = os.pread(self.fd, 20, 0).strip()
        return int(word) if word.isdigit() else None

    def close(self) -> None:
        os.close(self.fd)
