"""The side of the store that only reads: events, one session as it stands, the list of sessions.

It knows rows and who holds what; it opens a connection of its own for each question, one that can't
write, so it works beside any writer, and where nothing may be written.
"""

import contextlib
import json
import sqlite3
from typing import Any, Callable, Collection, Dict, Iterator, List, Optional, Tuple

from syncagent.boundary.store import schema
from syncagent.boundary.store.faults import Patience, fault_of, patiently
from syncagent.boundary.store.files import Places
from syncagent.boundary.store.forks import ForkGuard
from syncagent.boundary.store.lease import Holder, find_holder
from syncagent.boundary.store.protocol import Inspected, SessionInfo
from syncagent.boundary.store.scan import fold_after, scan
from syncagent.errors import SessionNotFound
from syncagent.log import Event, closers

__all__ = ["Reader"]


class Reader:
    """Answers questions about a store's file."""

    def __init__(self, places: Places, *, guard: ForkGuard, busy_timeout: float) -> None:
        self._places = places
        self._guard = guard
        self._busy_timeout = busy_timeout

    def read(self, session: str, since: int, types: Optional[Collection[str]]) -> Iterator[Event]:
        with self._connection() as conn:
            if conn is None:
                raise SessionNotFound(session, self._places.path)
            query = "SELECT id, next_seq FROM sessions WHERE uid = ?"
            row = self._attempt(lambda: conn.execute(query, (session,)).fetchone())
            if row is None:
                raise SessionNotFound(session, self._places.path)
            yield from self._scan(conn, session, row[0], since, row[1], types)

    def inspect(self, session: str) -> Inspected:
        with self._connection() as conn:
            row = None
            if conn is not None:
                row = self._attempt(lambda: self._look(conn, session))
            if conn is None or row is None:
                raise SessionNotFound(session, self._places.path)
            (sid, next_seq, state_text), holder = row
            events = list(self._scan(conn, session, sid, 0, next_seq, None))
        if holder is not None:
            return Inspected(events=events, live=True, closers=[])
        closing = closers(fold_after(state_text, next_seq, lambda since: events[since:]))
        return Inspected(events=events + closing, live=False, closers=closing)

    def sessions(self) -> List[SessionInfo]:
        with self._connection() as conn:
            return self._attempt(lambda: self._list(conn)) if conn is not None else []

    # -- the parts ---------------------------------------------------------------------------------

    def _look(
        self, conn: sqlite3.Connection, session: str
    ) -> Optional[Tuple[Tuple[int, int, str], Optional[Holder]]]:
        query = "SELECT id, next_seq, state, runner FROM sessions WHERE uid = ?"
        row = conn.execute(query, (session,)).fetchone()
        return (row[:3], find_holder(conn, self._places, row[3])) if row is not None else None

    def _list(self, conn: sqlite3.Connection) -> List[SessionInfo]:
        rows = conn.execute(
            "SELECT uid, runner, since, open_turn, turns, ending, created, updated, meta FROM sessions"
            " ORDER BY updated DESC, id DESC"
        ).fetchall()
        holders: Dict[Optional[int], Optional[Holder]] = {}
        infos: List[SessionInfo] = []
        for uid, runner, since, open_turn, turns, ending, created, updated, meta in rows:
            if runner not in holders:
                holders[runner] = find_holder(conn, self._places, runner)
            holder = holders[runner]
            if open_turn is not None:
                ending = "open" if holder is not None else "unfinished"
            infos.append(
                SessionInfo(
                    id=uid,
                    live=holder is not None,
                    pid=holder.pid if holder is not None else None,
                    host=holder.host if holder is not None else None,
                    since=since if holder is not None else None,
                    known=holder.known if holder is not None else None,
                    turns=turns,
                    ending=ending,
                    created=created,
                    updated=updated,
                    meta=_meta(meta),
                )
            )
        return infos

    def _scan(
        self,
        conn: sqlite3.Connection,
        session: str,
        sid: int,
        since: int,
        until: int,
        types: Optional[Collection[str]],
    ) -> Iterator[Event]:
        return scan(
            conn,
            path=self._places.path,
            session=session,
            sid=sid,
            since=since,
            until=until,
            types=types,
            attempt=self._attempt,
        )

    def _attempt(self, work: Callable[[], Any]) -> Any:
        """One read; SQLite is in no call of ours before and after it, and locked files are waited for."""
        self._guard.check()

        def guarded() -> Any:
            with self._guard.busy():
                return work()

        try:
            return patiently(guarded, Patience(self._busy_timeout, path=self._places.path))
        except sqlite3.Error as exc:
            raise fault_of(exc, path=self._places.path, doing="it can't be read").error() from exc

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Optional[sqlite3.Connection]]:
        """A connection for one question; None if there is no database yet."""
        conn: Optional[sqlite3.Connection] = self._attempt(lambda: schema.open_reader(self._places))
        try:
            yield conn
        finally:
            if conn is not None and not self._guard.forked:
                conn.close()


def _meta(text: str) -> Dict[str, Any]:
    try:
        meta = json.loads(text)
    except ValueError:
        return {}  # damaged: the list is still worth having
    return meta if isinstance(meta, dict) else {}
