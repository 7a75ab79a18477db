"""The store in one SQLite file: `protocol.Backend`, put together of a writer and a reader.

It knows the public promises and leaves each to the part that keeps it.
"""

import os
from types import TracebackType
from typing import Any, Collection, Iterator, List, Mapping, Optional, Sequence, Type, Union

from syncagent.boundary.store.files import Places
from syncagent.boundary.store.forks import ForkGuard
from syncagent.boundary.store.protocol import (
    Inspected,
    Lease,
    OnFailure,
    Opened,
    Points,
    SessionInfo,
    check_session_id,
)
from syncagent.boundary.store.reader import Reader
from syncagent.boundary.store.writer import Writer
from syncagent.cancel import CancellationToken
from syncagent.errors import InvalidLog
from syncagent.log import Event, LogState

__all__ = ["SQLiteStore"]


class SQLiteStore:
    """Sessions in the file `path`, for any number of threads and processes at once.

    Nothing is touched before the first use: reading opens the file to read, `create` and `open` make
    it where it is missing, with a folder `<path>-runners` beside it, and start the writer's thread,
    which ends at `close`. Forget `close`, and events that no flush waited for may be lost with the
    process.

    `durability` is "full": what `flush` has acknowledged survives a loss of power. `journal` is "wal",
    or "delete" for file systems without write-ahead logging, where a writer keeps readers waiting.
    `busy_timeout` is how long, in seconds, other processes may hold the file before `StoreBusy`.
    `points` is for tests: see `protocol.POINTS`.
    """

    def __init__(
        self,
        path: Union[str, "os.PathLike[str]"],
        *,
        durability: str = "full",
        journal: str = "wal",
        points: Optional[Points] = None,
        busy_timeout: float = 30.0,
    ) -> None:
        if durability != "full":
            raise ValueError(f'durability is "full", not {durability!r}: less would lose acknowledged events')
        if journal not in ("wal", "delete"):
            raise ValueError(f'journal is "wal" or "delete", not {journal!r}')
        places = Places.of(path)
        self.path = places.path
        self._points = points if points is not None else _no_points
        self._guard = ForkGuard(places.path)
        self._reader = Reader(places, guard=self._guard, busy_timeout=busy_timeout)
        self._writer = Writer(
            places, guard=self._guard, journal=journal, points=self._points, busy_timeout=busy_timeout
        )

    def __repr__(self) -> str:
        return f"<SQLiteStore {self.path!r}>"

    @property
    def forked(self) -> bool:
        return self._guard.forked

    # -- writing -----------------------------------------------------------------------------------

    def create(
        self,
        session: str,
        *,
        meta: Mapping[str, Any] = {},
        on_failure: OnFailure,
        token: Optional[CancellationToken] = None,
    ) -> Opened:
        self._guard.check()
        return self._writer.create(check_session_id(session), meta, on_failure, token)

    def open(
        self,
        session: str,
        *,
        steal: bool = False,
        on_failure: OnFailure,
        token: Optional[CancellationToken] = None,
    ) -> Opened:
        self._guard.check()
        return self._writer.open(check_session_id(session), steal, on_failure, token)

    def append(
        self, lease: Lease, events: Sequence[Event], *, state: Optional[LogState] = None
    ) -> None:
        self._guard.check()
        sized = [(event, _size(event)) for event in events]
        for event in events:
            self._points("store.append", type=event.type)
        self._writer.backlog.append(lease, sized, state)

    def flush(self, lease: Optional[Lease] = None, *, token: Optional[CancellationToken] = None) -> None:
        self._guard.check()
        self._points("store.flush")
        if token is not None:
            token.raise_if_cancelled()
        if not self._writer.backlog.flush(lease, token):
            self._writer.check_files()

    def retry(self) -> None:
        self._guard.check()
        self._writer.backlog.retry()

    def durable_seq(self, lease: Lease) -> int:
        self._guard.check()
        return self._writer.backlog.durable_seq(lease)

    def release(self, lease: Lease) -> None:
        self._guard.check()
        self._writer.release(lease)

    # -- reading -----------------------------------------------------------------------------------

    def read(
        self, session: str, *, since: int = 0, types: Optional[Collection[str]] = None
    ) -> Iterator[Event]:
        return self._reader.read(check_session_id(session), since, types)

    def inspect(self, session: str) -> Inspected:
        return self._reader.inspect(check_session_id(session))

    def sessions(self) -> List[SessionInfo]:
        return self._reader.sessions()

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        if not self._guard.forked:  # the parent's store is the parent's to close
            self._writer.close()

    def __enter__(self) -> "SQLiteStore":
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()


def _no_points(name: str, **info: Any) -> None:
    """No test stops or fails this store."""


def _size(event: Event) -> int:
    """The size of an event's text in bytes. Raises `InvalidLog` for what SQLite could not store.

    One event that can't be written would stop all that are queued with it.
    """
    try:
        size = len(event.text.encode("utf-8")) + len(event.type.encode("utf-8"))
    except UnicodeEncodeError as exc:
        text = f"{ascii(event.type)}: its text can't be stored: {exc.reason} at {exc.start}"
        raise InvalidLog("L1", event.seq, text) from exc
    if not (0 < event.seq < 1 << 63 and 0 <= event.time < 1 << 63):
        raise InvalidLog("L1", event.seq, f"{event.type}: its seq or time is no 64-bit number")
    return size
