"""The public store: sessions in one database file, to create, open, load and look at.

It knows the protocol of the backends and no backend's SQL. A `Store` may be used from any thread.
"""

import contextlib
import os
import secrets
import time
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Set, Union

from syncagent.boundary.store.protocol import Backend, Inspected, Opened, SessionInfo
from syncagent.cancel import CancellationToken
from syncagent.errors import LeaseLost, SessionExists, SessionNotFound, StoreError
from syncagent.log import Event
from syncagent.runtime import locks
from syncagent.runtime.session import Session

__all__ = ["Store"]


class Store:
    """The sessions of one database file.

    `path` is the file; it and its folder are made when the first session is. `durability` is "full":
    a flush survives a power loss. `journal` is "wal", or "delete" for file systems that refuse it.
    `points(name, **info)`, if given, is called at named points of the work: tests stop or fail it
    there (see `syncagent.testing.FailPoints`). Close the store after its agents.
    """

    def __init__(
        self,
        path: Union[str, "os.PathLike[str]"],
        durability: str = "full",
        journal: str = "wal",
        *,
        points: Optional[Callable[..., None]] = None,
    ) -> None:
        from syncagent.boundary.store.sqlite import SQLiteStore

        self.points: Callable[..., None] = points or _no_point
        self._backend: Backend = SQLiteStore(path, durability=durability, journal=journal, points=points)
        self._guard = locks.guard("store sessions", self._backend.path)
        self._live: Dict[str, Session] = {}
        self._entering: Set[str] = set()  # what a thread opens or loads at this moment

    def __reduce__(self) -> Any:
        raise TypeError("a Store can't be copied or pickled: open another at its path")

    @property
    def path(self) -> str:
        """The database file."""
        return self._backend.path

    # -- driving ----------------------------------------------------------------------------------

    def create(
        self,
        session: Optional[str] = None,
        *,
        meta: Optional[Mapping[str, Any]] = None,
        token: Optional[CancellationToken] = None,
    ) -> Session:
        """A new session, live here. Raises `SessionExists`, or `ValueError` for a bad id."""
        id = session if session is not None else new_session_id()
        failed = _Failure()
        opened = self._backend.create(id, meta=meta or {}, on_failure=failed, token=token)
        return self._enter(id, opened, failed)

    def open(
        self, session: str, *, steal: bool = False, token: Optional[CancellationToken] = None
    ) -> Session:
        """An existing session, live here; a cold one is repaired first, see its `report`.

        `steal` takes it from an owner that can't be asked whether it lives, on another host or another
        user's; if it does, it can write no more. An owner that is known to live keeps its session.
        Raises `SessionNotFound`, `SessionLive`, `InvalidLog` or a `StoreError`.
        """
        with self._in_hand(session, token):
            return self._open(session, steal=steal, token=token)

    def _open(
        self, session: str, *, steal: bool = False, token: Optional[CancellationToken] = None
    ) -> Session:
        failed = _Failure()
        opened = self._backend.open(session, steal=steal, on_failure=failed, token=token)
        return self._enter(session, opened, failed)

    def open_or_create(
        self, session: Optional[str], *, steal: bool = False, token: Optional[CancellationToken] = None
    ) -> Session:
        """Open the session of that id, or make it; None makes one with a new id."""
        while session is not None:
            with contextlib.suppress(SessionNotFound):
                return self.open(session, steal=steal, token=token)
            with contextlib.suppress(SessionExists):  # somebody made it in between: open that one
                return self.create(session, token=token)
        return self.create(token=token)

    def _enter(self, id: str, opened: Opened, failed: "_Failure") -> Session:
        try:
            session = Session(id, backend=self._backend, opened=opened, on_close=self._leave)
        except BaseException:
            self._backend.release(opened.lease)
            raise
        failed.bind(session)
        with self._guard:
            self._live[id] = session
        return session

    def _leave(self, session: Session) -> None:
        with self._guard:
            if self._live.get(session.id) is session:
                del self._live[session.id]

    # -- looking ----------------------------------------------------------------------------------

    def load(self, session: str) -> List[Event]:
        """All events of a balanced log.

        Live here: waits until they are durable, or raises `SessionOpenTurn`. Live elsewhere:
        `SessionLive`. Cold: it is repaired, read and let go.
        """
        while True:
            with self._in_hand(session) as live:
                if live is None:
                    with self._open(session) as opened:
                        return opened.load()
            try:
                return live.load()
            except LeaseLost:
                if not live.closed:
                    raise  # else it was given back meanwhile, and the session is cold

    @contextlib.contextmanager
    def _in_hand(
        self, session: str, token: Optional[CancellationToken] = None
    ) -> Iterator[Optional[Session]]:
        """One thread at a time opens or loads a session; who comes second sees what came of it.

        Gives the session if it is live here.
        """
        with contextlib.ExitStack() as stack:
            if token is not None:
                stack.enter_context(token.on_cancel(self._wake))
            stack.enter_context(self._guard)
            while session in self._entering:
                if token is not None:
                    token.raise_if_cancelled()
                self._guard.wait()
            self._entering.add(session)
            live = self._live.get(session)
        try:
            yield live
        finally:
            with self._guard:
                self._entering.discard(session)
                self._guard.notify_all()

    def _wake(self) -> None:
        with self._guard:
            self._guard.notify_all()

    def inspect(self, session: str) -> List[Event]:
        """The events of any session, writing nothing: a cold one with its closers added in memory,
        a live one as it stands in the file."""
        return self.examine(session).events

    def examine(self, session: str) -> Inspected:
        """Like `inspect`, and whether the session is live, and which of the events are closers."""
        return self._backend.inspect(session)

    def read(self, session: str, since: int = 0) -> Iterator[Event]:
        """The stored events with a greater `seq` than `since`."""
        return self._backend.read(session, since=since)

    def sessions(self) -> List[SessionInfo]:
        """What is known of each session, the one updated last first."""
        return self._backend.sessions()

    def close(self) -> None:
        """Close what is still open here and end the writer.

        Agents that still run are closed too: their turns are cancelled with "disposed" and waited
        for. May be repeated; does nothing in a forked child. Raises `RuntimeError` in a turn.
        """
        if self._backend.forked:
            return
        with self._guard:
            live = list(self._live.values())
        for session in live:
            session.check_outside()
        try:
            for session in live:
                with contextlib.suppress(StoreError):  # the backend's close reports the store's state
                    session.close()
        finally:
            self._backend.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


class _Failure:
    """Takes the writer's word on a lost session, also before the `Session` object is there."""

    def __init__(self) -> None:
        self._session: Optional[Session] = None
        self._error: Optional[StoreError] = None

    def __call__(self, error: StoreError) -> None:
        self._error = error
        if self._session is not None:
            self._session.fail(error)

    def bind(self, session: Session) -> None:
        self._session = session
        if self._error is not None:
            session.fail(self._error)


def _no_point(name: str, **info: Any) -> None:
    """No fail-point is set."""


def new_session_id() -> str:
    """A readable id that sorts by time: `20260131-235959-1a2b3c`."""
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime()) + secrets.token_hex(3)
