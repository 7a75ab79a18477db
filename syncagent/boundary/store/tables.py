"""What the writer does to the tables, each function inside one open transaction.

It knows rows, leases and the log's grammar; no thread, no queue and no file but those of runners.
Every write of a session is fenced by its epoch and its `next_seq`.
"""

import json
import sqlite3
import time
from typing import Any, Callable, List, Mapping, Optional, Sequence

import attrs

from syncagent.boundary.store.files import Places
from syncagent.boundary.store.lease import find_holder
from syncagent.boundary.store.protocol import Lease
from syncagent.boundary.store.rows import pack
from syncagent.boundary.store.scan import fold_tail
from syncagent.errors import SessionExists, SessionLive, SessionNotFound
from syncagent.log import Event, LogState
from syncagent.log import check as fold
from syncagent.log import closers
from syncagent.log.events import TurnEnd, TurnStart

__all__ = ["Progress", "Taken", "create_session", "release_session", "take_session", "write_events"]


@attrs.frozen(kw_only=True)
class Progress:
    """What a session's row says of its events, written in the transaction that writes them."""

    next_seq: int = 1
    open_turn: Optional[int] = None
    turns: int = 0
    ending: Optional[str] = None
    updated: int = 0

    def after(self, events: Sequence[Event]) -> "Progress":
        open_turn, turns, ending = self.open_turn, self.turns, self.ending
        for event in events:
            if isinstance(event.body, TurnStart):
                open_turn, turns = event.seq, turns + 1
            elif isinstance(event.body, TurnEnd):
                open_turn, ending = None, event.body.kind
        last = events[-1]
        return Progress(
            next_seq=last.seq + 1,
            open_turn=open_turn,
            turns=turns,
            ending=ending,
            updated=max(self.updated, last.time),
        )


@attrs.frozen(kw_only=True)
class Taken:
    """A session that was created or opened."""

    lease: Lease
    state: LogState
    closers: List[Event]
    progress: Progress


def create_session(
    conn: sqlite3.Connection, *, path: str, session: str, meta: Mapping[str, Any], runner: int
) -> Taken:
    """Insert a new session, held by `runner`. Raises `SessionExists`."""
    if conn.execute("SELECT 1 FROM sessions WHERE uid = ?", (session,)).fetchone() is not None:
        raise SessionExists(session, path)
    now = int(time.time() * 1000)
    cursor = conn.execute(
        "INSERT INTO sessions(uid, meta, created, updated, runner, since, epoch)"
        " VALUES (?, ?, ?, ?, ?, ?, 1)",
        (session, json.dumps(dict(meta)), now, now, runner, now),
    )
    assert cursor.lastrowid is not None
    lease = Lease(session=session, sid=cursor.lastrowid, epoch=1)
    return Taken(lease=lease, state=LogState(), closers=[], progress=Progress(updated=now))


def take_session(
    conn: sqlite3.Connection,
    *,
    places: Places,
    session: str,
    runner: int,
    steal: bool,
    is_held: Callable[[int], bool],
    check: Callable[[], object],
) -> Taken:
    """Take a cold session: a new epoch, its events folded, its open turn closed.

    `is_held` says whether this process drives a session's number; `check` is called now and then and
    may raise. `steal` takes a session whose owner can't be asked; one that lives keeps it. Raises
    `SessionNotFound`, `SessionLive`, `InvalidLog`, `StoreCorrupt`.
    """
    query = "SELECT id, runner, since, epoch, next_seq, state FROM sessions WHERE uid = ?"
    row = conn.execute(query, (session,)).fetchone()
    if row is None:
        raise SessionNotFound(session, places.path)
    sid, owner, since, epoch, next_seq, kept = row
    # A lease of our own that could not be given back, for want of space, holds nobody up.
    holder = find_holder(conn, places, owner) if owner != runner or is_held(sid) else None
    if holder is not None and (holder.known or not steal):
        raise SessionLive(session, holder.pid, holder.host, since or 0, holder.known)
    lease = Lease(session=session, sid=sid, epoch=epoch + 1)
    conn.execute(
        "UPDATE sessions SET runner = ?, since = ?, epoch = ? WHERE id = ?",
        (runner, int(time.time() * 1000), lease.epoch, sid),
    )
    where = {"path": places.path, "session": session}
    state = fold_tail(conn, sid=sid, state=kept, next_seq=next_seq, check=check, **where)
    progress = _read_progress(conn, sid)
    closing = closers(state)
    if closing:
        fold(closing, state)
        after = write_events(conn, lease=lease, progress=progress, events=closing, state=state)
        assert after is not None, "the transaction holds the lease"
        progress = after
    return Taken(lease=lease, state=state, closers=closing, progress=progress)


def _read_progress(conn: sqlite3.Connection, sid: int) -> Progress:
    query = "SELECT next_seq, open_turn, turns, ending, updated FROM sessions WHERE id = ?"
    next_seq, open_turn, turns, ending, updated = conn.execute(query, (sid,)).fetchone()
    return Progress(next_seq=next_seq, open_turn=open_turn, turns=turns, ending=ending, updated=updated)


def write_events(
    conn: sqlite3.Connection,
    *,
    lease: Lease,
    progress: Progress,
    events: Sequence[Event],
    state: Optional[LogState],
) -> Optional[Progress]:
    """Append events of one session; None, and nothing written, if its lease is lost."""
    after = progress.after(events)
    cursor = conn.execute(
        "UPDATE sessions SET next_seq = ?, open_turn = ?, turns = ?, ending = ?, updated = ?,"
        " state = coalesce(?, state), rev = rev + 1 WHERE id = ? AND epoch = ? AND next_seq = ?",
        (
            after.next_seq,
            after.open_turn,
            after.turns,
            after.ending,
            after.updated,
            json.dumps(state.dump(), separators=(",", ":")) if state is not None else None,
            lease.sid,
            lease.epoch,
            progress.next_seq,
        ),
    )
    if cursor.rowcount == 0:
        return None
    conn.executemany(
        "INSERT INTO events(sid, seq, n, type, time, surface, data) VALUES (?, ?, ?, ?, ?, ?, ?)",
        [(lease.sid, *row) for row in pack(events)],
    )
    return after


def release_session(conn: sqlite3.Connection, lease: Lease) -> None:
    """Leave a session to whoever comes next, unless somebody has taken it already."""
    conn.execute(
        "UPDATE sessions SET runner = NULL, since = NULL WHERE id = ? AND epoch = ?",
        (lease.sid, lease.epoch),
    )
