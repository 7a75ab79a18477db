"""What a failure of SQLite or of the file system means: which error, and whether waiting helps.

It knows error codes and messages, not sessions. `sqlite3.Error.sqlite_errorname` exists from Python
3.11 on; before, the message is all there is.
"""

import copy
import enum
import errno
import logging
import os
import resource
import sqlite3
import time
from typing import Callable, Optional, Tuple, Type, TypeVar

import attrs

from syncagent.cancel import CancellationToken
from syncagent.errors import (
    NotAStore,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
)

__all__ = ["Fault", "Kind", "Patience", "fault_of", "kind_of", "looks_full", "make_fault", "patiently"]

T = TypeVar("T")

_logger = logging.getLogger("syncagent")

#: How long one waits, in seconds, before the log says for whom.
NOTICE_AFTER = 2.0

FAILED = "a write failed; reopen the store, and the next open of a session repairs it"


class Kind(enum.Enum):
    """What kind of failure it was."""

    FULL = "full"
    BUSY = "busy"
    READ_ONLY = "read-only"
    CORRUPT = "corrupt"
    NO_DATABASE = "no database"
    CANT_OPEN = "can't open"
    WRITE = "write"  # a write failed, nothing says of an fsync
    IO = "i/o"
    CONSTRAINT = "constraint"
    OTHER = "other"


#: The first that fits decides: the start of `sqlite_errorname`, and the text of its message.
_SQLITE: Tuple[Tuple[str, str, Kind], ...] = (
    ("SQLITE_FULL", "database or disk is full", Kind.FULL),
    ("SQLITE_BUSY", "database is locked", Kind.BUSY),
    ("SQLITE_LOCKED", "table is locked", Kind.BUSY),
    ("SQLITE_LOCKED", "schema is locked", Kind.BUSY),
    ("SQLITE_PROTOCOL", "locking protocol", Kind.BUSY),
    ("SQLITE_READONLY", "readonly database", Kind.READ_ONLY),
    ("SQLITE_CORRUPT", "malformed", Kind.CORRUPT),
    ("SQLITE_NOTADB", "not a database", Kind.NO_DATABASE),
    ("SQLITE_CANTOPEN", "unable to open", Kind.CANT_OPEN),
    ("SQLITE_IOERR_WRITE", "", Kind.WRITE),
    ("SQLITE_IOERR", "disk i/o error", Kind.IO),
    ("SQLITE_CONSTRAINT", "constraint failed", Kind.CONSTRAINT),
)
_ERRNO = {
    errno.ENOSPC: Kind.FULL,
    errno.EDQUOT: Kind.FULL,
    errno.EFBIG: Kind.FULL,
    errno.EACCES: Kind.READ_ONLY,
    errno.EPERM: Kind.READ_ONLY,
    errno.EROFS: Kind.READ_ONLY,
}


def kind_of(exc: BaseException) -> Kind:
    """What kind of failure an exception of `sqlite3` or of the file system is."""
    if isinstance(exc, sqlite3.Error):
        name = getattr(exc, "sqlite_errorname", None)
        text = str(exc).lower()
        for prefix, message, kind in _SQLITE:
            if name.startswith(prefix) if name else message and message in text:
                return kind
        # Raised by the module itself, and by tests that put a failure in, without a name.
        return Kind.OTHER if name is None or isinstance(exc, sqlite3.ProgrammingError) else Kind.IO
    if isinstance(exc, OSError):
        return _ERRNO.get(exc.errno or 0, Kind.IO)
    return Kind.OTHER


@attrs.frozen(kw_only=True)
class Fault:
    """One failure, which each one who meets it gets as an exception of its own.

    An exception that is raised in several threads would collect the tracebacks of all of them.
    """

    make: Callable[[], StoreError]
    cause: Optional[BaseException] = None

    def error(self) -> StoreError:
        error = self.make()
        error.__cause__ = self.cause
        return error


def fault_of(exc: BaseException, *, path: str, doing: str = FAILED) -> Fault:
    """The fault that an exception stands for; a `StoreError` stands for itself.

    `doing` is the message's text where nothing better is known.
    """
    if isinstance(exc, StoreError):
        own = exc
        return Fault(make=lambda: copy.copy(own), cause=own.__cause__)
    text, cls = {
        Kind.FULL: (
            "the disk or a quota is full; the events are kept in order: make room and retry",
            StoreFull,
        ),
        Kind.BUSY: ("another process holds the database; the events are kept in order: retry", StoreBusy),
        Kind.READ_ONLY: ("the file or its folder can't be written: make both writable", StoreReadOnly),
        Kind.CORRUPT: ("the file is damaged, and was left as it is", StoreCorrupt),
        Kind.NO_DATABASE: ("the file is no database: choose another path", NotAStore),
        Kind.CANT_OPEN: ("the file can't be opened", StoreFailed),
    }.get(kind_of(exc), (doing, StoreFailed))
    return make_fault(cls, f"{path}: {text} ({exc})", path=path, cause=exc)


def make_fault(
    cls: Type[StoreError], message: str, *, path: str, cause: Optional[BaseException] = None
) -> Fault:
    return Fault(make=lambda: cls(message, path=path), cause=cause)


def looks_full(exc: BaseException, *, folder: str, largest: int) -> bool:
    """Whether a failed write is that of a full quota, which SQLite reports as a plain I/O error.

    A full disk it reports as such; a user's quota and a limit of file sizes it does not. So a few
    pages are written to a file of our own in `folder`, and the limit is compared with `largest`, the
    size in bytes of the largest file that was to grow.
    """
    named = getattr(exc, "sqlite_errorname", None) is not None
    if kind_of(exc) is not Kind.WRITE and (named or kind_of(exc) is not Kind.IO):
        return False
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    if limit != resource.RLIM_INFINITY and largest + 262144 > limit:
        return True
    probe = os.path.join(folder, f"probe-{os.getpid()}")
    try:
        with open(probe, "wb", buffering=0) as file:
            try:
                file.write(b"\0" * 65536)
            finally:
                os.unlink(probe)
    except OSError as failure:
        return kind_of(failure) is Kind.FULL
    return False


class Patience:
    """How long one piece of work may wait for another process; the waits themselves are short.

    SQLite's own wait can't be woken, so it is cut into slices, and `check` is called between them.
    """

    def __init__(self, seconds: float, *, path: str, token: Optional[CancellationToken] = None) -> None:
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self._notice_at = self._end - seconds + NOTICE_AFTER
        self._path = path
        self._token = token

    def check(self, holder: Optional[int] = None) -> None:
        """Raise `Cancelled` or, when the time is up, `StoreBusy`; `holder` is the pid in the way."""
        self.check_token()
        now = time.monotonic()
        who = f"process {holder}" if holder else "another process"
        if now >= self._end:
            text = f"{self._path}: {who} has held the database for {self._seconds:g} s: let it end and retry"
            raise StoreBusy(text, path=self._path)
        if now >= self._notice_at:
            self._notice_at = self._end
            _logger.warning("%s: waiting for %s, which holds the database", self._path, who)

    def check_token(self) -> None:
        """Raise `Cancelled` if whoever waits for the work has given up."""
        if self._token is not None:
            self._token.raise_if_cancelled()


def patiently(work: Callable[[], T], patience: Patience) -> T:
    """Do the work, again while the database is locked; each try waits for a slice at most."""
    while True:
        try:
            return work()
        except sqlite3.OperationalError as exc:
            if kind_of(exc) is not Kind.BUSY:
                raise
            patience.check()
            time.sleep(0.005)  # the answer can be BUSY at once, in spite of SQLite's own wait
