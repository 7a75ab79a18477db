"""What the runtime needs of a store: one protocol, and the values that cross it.

It knows sessions as ids and events as values. It knows no file, no SQL and no lock; another store
than SQLite's is a class with these methods. Every method may be called from any thread, none calls
back while it holds a lock, and each one refuses to work in a forked child (`ForkedStore`).
"""

import re
from typing import Any, Callable, Collection, Dict, Iterator, List, Mapping, Optional, Protocol, Sequence

import attrs

from syncagent.cancel import CancellationToken
from syncagent.errors import StoreError
from syncagent.log import Event, LogState

__all__ = [
    "Backend",
    "Inspected",
    "Lease",
    "OnFailure",
    "Opened",
    "POINTS",
    "Points",
    "SessionInfo",
    "check_session_id",
]

#: Called when a session can't be written any more, from a thread of the store, with no lock held.
#: It must be short and must not block. See `Backend.create`.
OnFailure = Callable[[StoreError], object]
#: Called as `points(name, **info)` at the places of `POINTS`: a test stops or fails a store there.
Points = Callable[..., object]

#: name -> where it is. What a point raises is handled as if the store had raised it there; after a
#: commit that fails the store for good.
POINTS: Mapping[str, str] = {
    "store.append": "in append(), once for each event, with `type`; nothing of the call is queued yet",
    "store.flush": "in flush(), before it waits",
    "store.commit.before": "on the writer's thread, with `events` (a number): all rows of a batch are"
    " written, the transaction is still open",
    "store.commit.after": "on the writer's thread, with `events`: the batch is on disk, nobody who"
    " waits for it has been told",
    "store.repair.before_commit": "on the writer's thread, with `session` and `events`: the closers of"
    " a cold session are written, the transaction that took the session is still open",
}

_SESSION_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,127}")


def check_session_id(session: str) -> str:
    """Return the id if it may name a session; raise `ValueError`, with the id escaped, if not.

    1 to 128 characters out of the letters and digits of ASCII, ".", "_" and "-", the first one no ".":
    an id is safe as a file name, in a terminal and in a URL.
    """
    if not isinstance(session, str) or _SESSION_ID.fullmatch(session) is None:
        shown = ascii(session)
        shown = shown if len(shown) <= 160 else shown[:157] + "..."
        raise ValueError(
            f"{shown} can't name a session: use 1 to 128 letters, digits, '.', '_' and '-',"
            " the first one no '.'"
        )
    return session


@attrs.frozen(kw_only=True)
class Lease:
    """The proof that this process drives the session. `epoch` goes up each time somebody takes it.

    `sid` is the store's own number of the session.
    """

    session: str
    sid: int
    epoch: int


@attrs.frozen(kw_only=True)
class Opened:
    """A session that this process drives from now on.

    `state` is the log's state after the last event, phase idle; it is the caller's to advance.
    `closers` are the events that repair appended, durable already; none if the log was balanced.
    """

    lease: Lease
    state: LogState
    closers: List[Event] = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class SessionInfo:
    """One line of the list of sessions.

    `pid`, `host` and `since` (ms since the epoch) are those of the process that drives it, None when
    it is cold; `known` is False where that process can't be asked whether it lives. `turns` counts the
    turns that were started. `ending` is how the last turn ended; "open" while one is open in a live
    session, "unfinished" when one is open and nobody drives it; None before the first. `created` and
    `updated` are in ms since the epoch.
    """

    id: str
    live: bool
    pid: Optional[int]
    host: Optional[str]
    since: Optional[int]
    known: Optional[bool]
    turns: int
    ending: Optional[str]
    created: int
    updated: int
    meta: Dict[str, Any]


@attrs.frozen(kw_only=True)
class Inspected:
    """A session as it stands, read without writing.

    `closers` are what a repair would append now, if the session is cold; `events` holds them at its
    end. A live session is given as it is, its turn open, and has none.
    """

    events: List[Event]
    live: bool
    closers: List[Event]


class Backend(Protocol):
    """Where the logs of sessions live.

    `on_failure` is called once with each error that stops a session's writing: `LeaseLost` and
    `StoreCorrupt` for that session; `StoreFailed`, `StoreReplaced` and `StoreReadOnly` for all of them
    and for good; `StoreFull` and `StoreBusy` for those with events that wait, which are kept until
    `retry()`.
    """

    path: str

    @property
    def forked(self) -> bool:
        """Whether this is a forked child of the process that made it: every use is refused there."""
        ...  # pragma: no cover

    def create(
        self,
        session: str,
        *,
        meta: Mapping[str, Any] = {},
        on_failure: OnFailure,
        token: Optional[CancellationToken] = None,
    ) -> Opened:
        """Make a new session and take its lease. Raises `SessionExists`, `StoreError`, `Cancelled`."""
        ...  # pragma: no cover

    def open(
        self,
        session: str,
        *,
        steal: bool = False,
        on_failure: OnFailure,
        token: Optional[CancellationToken] = None,
    ) -> Opened:
        """Take the lease of a cold session and close its open turn, in one transaction.

        `steal` takes it from an owner that can't be asked whether it lives, too; if it does, its next
        write fails with `LeaseLost`. Raises `SessionNotFound`, `SessionLive`, `InvalidLog` for a log
        that breaks a rule, `StoreCorrupt` for one that can't be read, any other `StoreError`, and
        `Cancelled`; nothing is changed then.
        """
        ...  # pragma: no cover

    def append(
        self, lease: Lease, events: Sequence[Event], *, state: Optional[LogState] = None
    ) -> None:
        """Queue events for the writer; all of them or none. Never blocks.

        `state` is `LogState.kept()` after the last of them, given whenever that state is idle: it makes
        the next open fast. Raises the session's error if it can't be written any more, `InvalidLog`
        (L1) for an event that can't be stored.
        """
        ...  # pragma: no cover

    def flush(self, lease: Optional[Lease] = None, *, token: Optional[CancellationToken] = None) -> None:
        """The barrier: return when all that was appended before is durable, of one session or of all.

        Raises the `StoreError` that keeps it from that, and `Cancelled` when `token` is cancelled while
        it waits. Events that are kept stay queued, in order.
        """
        ...  # pragma: no cover

    def retry(self) -> None:
        """After `StoreFull` or `StoreBusy`: let the writer try again to write the events it kept."""
        ...  # pragma: no cover

    def durable_seq(self, lease: Lease) -> int:
        """The `seq` of the session's last event that is on disk, 0 if there is none."""
        ...  # pragma: no cover

    def release(self, lease: Lease) -> None:
        """Give the lease back. It flushes nothing: what is still queued is dropped."""
        ...  # pragma: no cover

    def read(
        self, session: str, *, since: int = 0, types: Optional[Collection[str]] = None
    ) -> Iterator[Event]:
        """The durable events with a `seq` above `since`, in order, of all types or some.

        Read in pages, with no transaction open between two of them. Raises `SessionNotFound`,
        `StoreCorrupt` with the `seq` of what can't be read, other `StoreError`s.
        """
        ...  # pragma: no cover

    def inspect(self, session: str) -> Inspected:
        """The session as it stands. Writes nothing. Raises what `read` raises, and `InvalidLog`."""
        ...  # pragma: no cover

    def sessions(self) -> List[SessionInfo]:
        """All sessions, the last updated first. Writes nothing."""
        ...  # pragma: no cover

    def close(self) -> None:
        """Write what is queued, give all leases back and end the writer's thread; may be repeated.

        Raises the `StoreError` that kept queued events from the disk; the store is closed all the same.
        In a forked child it does nothing.
        """
        ...  # pragma: no cover
