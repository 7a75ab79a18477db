"""Reading a session's rows in order, in pages, and noticing what is not as it was written.

It knows the table of events and the log's grammar, not who asks. Between two pages no statement is
open, so a slow reader keeps no transaction from ending.
"""

import functools
import json
import sqlite3
from typing import Any, Callable, Collection, Iterable, Iterator, List, Optional, Tuple

from syncagent.boundary.store.faults import Kind, kind_of
from syncagent.boundary.store.rows import DamagedRow, unpack
from syncagent.errors import InvalidLog, StoreCorrupt
from syncagent.log import Event, LogState
from syncagent.log import check as fold
from syncagent.log.folds import SURFACE

__all__ = ["fold_after", "fold_tail", "load_state", "scan"]

#: The most rows of a page, and about the most characters.
PAGE_ROWS = 512
PAGE_TEXT = 1 << 20

#: seq, n, type, time and data, as far as they are what they should be.
Row = Tuple[Any, ...]
#: Runs one read of the database; the reader waits in it while the database is locked.
Attempt = Callable[[Callable[[], Any]], Any]


def scan(
    conn: sqlite3.Connection,
    *,
    path: str,
    session: str,
    sid: int,
    since: int,
    until: int,
    types: Optional[Collection[str]] = None,
    attempt: Attempt = lambda work: work(),
) -> Iterator[Event]:
    """The events with since < seq < until, of all types or some.

    Raises `StoreCorrupt` with the seq of the first event that can't be read or isn't there; of gaps
    only when it reads all types.
    """
    damage = functools.partial(_damage, path, session)
    expected = attempt(lambda: _first_row(conn, sid, max(since, 0) + 1))
    while True:
        start = expected
        rows, failure = attempt(lambda: _page(conn, sid, start, until, types))
        for row in rows:
            if types is None and row[0] != expected:
                raise damage(expected, "it is missing")
            try:
                events = unpack(*row)
            except DamagedRow as exc:
                raise damage(exc.seq, exc.text) from None
            expected = row[0] + row[1]
            yield from (event for event in events if since < event.seq < until)
        if failure is not None:
            raise damage(expected, str(failure)) from failure
        if not rows:
            break
    if types is None and expected < until:
        raise damage(expected, "it is missing")


def _damage(path: str, session: str, seq: int, text: str) -> StoreCorrupt:
    text = f"{path}: session {session!r} is damaged at event {seq}: {text}"
    return StoreCorrupt(text, path=path, session=session, seq=seq)


def _first_row(conn: sqlite3.Connection, sid: int, seq: int) -> int:
    """The seq of the row that holds event `seq`: a run of chunks begins before it."""
    row = conn.execute("SELECT max(seq) FROM events WHERE sid = ? AND seq <= ?", (sid, seq)).fetchone()
    return int(row[0]) if row[0] is not None else seq


def _page(
    conn: sqlite3.Connection, sid: int, start: int, until: int, types: Optional[Collection[str]]
) -> Tuple[List[Row], Optional[sqlite3.Error]]:
    """The next rows and, where a row can't be read, why; what stood before it is not lost."""
    query = "SELECT seq, n, type, time, data FROM events WHERE sid = ? AND seq >= ? AND seq < ?"
    if types is not None:
        query += f" AND type IN ({', '.join('?' * len(types))})"
        if SURFACE.issuperset(types):
            query += " AND surface IS NOT NULL"  # an index of its own leaves all else unread
    query += " ORDER BY seq LIMIT ?"
    kinds = tuple(types or ())
    rows: List[Row] = []
    try:
        _fetch(conn, query, (sid, start, until, *kinds, PAGE_ROWS), rows)
    except sqlite3.Error as exc:
        if kind_of(exc) not in (Kind.CORRUPT, Kind.OTHER):
            raise
    else:
        return rows, None
    # Python before 3.10 reads one row ahead, and loses the good one before a bad one.
    rows = []
    while len(rows) < PAGE_ROWS:
        start = rows[-1][0] + 1 if rows else start
        before = len(rows)
        try:
            _fetch(conn, query, (sid, start, until, *kinds, 1), rows)
        except sqlite3.Error as exc:
            return rows, exc
        if len(rows) == before:
            break
    return rows, None


def _fetch(conn: sqlite3.Connection, query: str, values: Tuple[Any, ...], rows: List[Row]) -> None:
    cursor = conn.execute(query, values)
    try:
        size = 0
        for row in cursor:
            rows.append(row)
            size += len(row[4]) if isinstance(row[4], (str, bytes)) else 0
            if size >= PAGE_TEXT:
                break
    finally:
        cursor.close()


def load_state(text: Any, next_seq: int) -> LogState:
    """The state that a session's row keeps; that of an empty log where it can't be right.

    It only saves time: folded from the beginning, the events give the same.
    """
    try:
        state = LogState.load(json.loads(text))
        if type(state.seq) is int and 0 <= state.seq < next_seq:
            return state
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError, InvalidLog):
        pass  # damaged
    return LogState()


def fold_tail(
    conn: sqlite3.Connection,
    *,
    path: str,
    session: str,
    sid: int,
    state: Any,
    next_seq: int,
    check: Callable[[], object] = lambda: None,
) -> LogState:
    """The log's state after its last event, from what the row keeps and the rows behind that.

    `check` is called before each event. Raises `StoreCorrupt`, and `InvalidLog` for a log that breaks
    a rule.
    """
    query = "SELECT seq, n FROM events WHERE sid = ? ORDER BY seq DESC LIMIT 1"
    last = conn.execute(query, (sid,)).fetchone()
    found = last[0] + last[1] if last is not None else 1
    if found != next_seq:
        text = f"{path}: session {session!r} ends before event {found}, and its row says {next_seq}"
        raise StoreCorrupt(text, path=path, session=session, seq=min(found, next_seq))

    def after(since: int) -> Iterator[Event]:
        for event in scan(conn, path=path, session=session, sid=sid, since=since, until=next_seq):
            check()
            yield event

    return fold_after(state, next_seq, after)


def fold_after(state: Any, next_seq: int, events_after: Callable[[int], Iterable[Event]]) -> LogState:
    """The log's state after its last event, from what the row keeps and the events behind a seq.

    Raises `InvalidLog` for a log that breaks a rule.
    """
    known = load_state(state, next_seq)
    begin = known.seq
    try:
        return fold(events_after(begin), known)
    except InvalidLog:
        if begin == 0:
            raise
    return fold(events_after(0))  # it may be the kept state that is wrong, not the events
