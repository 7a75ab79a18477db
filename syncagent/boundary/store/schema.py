"""The database: its tables, how it is opened, made, checked and brought up to date.

It knows SQL and files, nothing of what events mean. Nothing is written before the file is known to be
ours. Works with SQLite 3.34 and later: no STRICT, no RETURNING, no JSON functions.
"""

import os
import sqlite3
import time
import uuid
from typing import Any, Callable, Mapping, Optional, Tuple
from urllib.parse import quote

from syncagent._version import __version__
from syncagent.boundary.store.faults import Kind, Patience, kind_of, patiently
from syncagent.boundary.store.files import Places, make_database_file, make_folder
from syncagent.errors import (
    NotAStore,
    StoreFailed,
    StoreReadOnly,
    StoreTooNew,
    WALUnavailable,
)

__all__ = ["APPLICATION_ID", "VERSION", "open_reader", "open_writer"]

APPLICATION_ID = 0x53594E43
#: The schema's version, in `user_version`.
VERSION = 1
#: The oldest version whose readers understand this schema.
MIN_READER = 1
#: The size of a database's header: nothing smaller is one.
HEADER_BYTES = 100
#: SQLite's own wait, in seconds, before we look at the token and the time again.
SLICE = 0.1

SESSIONS: Mapping[str, Any] = {
    "id": int,
    "uid": str,  # the session's id
    "meta": str,  # JSON
    "parent": int,
    "created": int,
    "updated": int,
    "runner": int,  # the lease: who drives it, since when, and the fence
    "since": int,
    "epoch": int,
    "next_seq": int,  # from here on projections, written with the events
    "open_turn": int,  # seq of the open turn's start
    "turns": int,
    "ending": str,
    "state": str,  # what the next event's rules need, at the last balanced point: JSON
    "rev": int,
}
#: A row holds `n` events, from `seq` on; `surface` is 1 on those that make messages.
EVENTS: Mapping[str, Any] = {
    "sid": int,
    "seq": int,
    "n": int,
    "type": str,
    "time": int,
    "surface": int,
    "data": str,
}
#: What another process asks of the one that drives a session.
CONTROL: Mapping[str, Any] = {
    "id": int,
    "sid": int,
    "kind": str,
    "body": str,
    "created": int,
    "claimed_by": int,
}

#: version -> what brings the tables from it to the next one, in an open transaction.
Migrations = Mapping[int, Callable[[sqlite3.Connection], None]]
MIGRATIONS: Migrations = {}


# -- opening ------------------------------------------------------------------------------------------


def open_writer(places: Places, *, journal: str, patience: Patience) -> sqlite3.Connection:
    """The connection that writes: the database made or migrated, its pragmas set and read back.

    Raises `NotAStore`, `StoreTooNew`, `StoreReadOnly`, `WALUnavailable`, `StoreBusy`, `StoreCorrupt`,
    `StoreFull`, `StoreFailed`, and `Cancelled`.
    """
    # By a reader first: merely opening another application's database to write could change it.
    patiently(lambda: _glance(places), patience)
    check_writable(places)
    make_database_file(places.path)
    conn = _connect(places.path, "mode=rw")
    try:
        patiently(lambda: _prepare(conn, places.path), patience)
        set_pragmas(conn, places.path, journal, patience)
        return conn
    except BaseException:
        conn.close()
        raise


def open_reader(places: Places) -> Optional[sqlite3.Connection]:
    """A connection that can't write; None if there is no database, or an empty one.

    Raises `NotAStore`, `StoreTooNew`, `StoreFailed` and SQLite's own errors.
    """
    _check_kind(places.path)
    if places.is_missing():
        return None
    try:
        return _open_to_read(places.path, "mode=ro")
    except sqlite3.OperationalError as exc:
        if kind_of(exc) not in (Kind.CANT_OPEN, Kind.READ_ONLY):
            raise
        if os.path.exists(places.path + "-journal"):
            # A commit without a write-ahead log was cut short: who opens the file next undoes it.
            return _open_to_read(places.path, "mode=rw")
        if not os.access(places.path, os.R_OK):
            text = f"{places.path} can't be read: this user has no permission"
            raise StoreFailed(text, path=places.path) from exc
        if os.path.exists(places.wal):
            raise _unreadable_log(places, exc)
        # In a folder that can't be written the files of a log can't be made. While there is none,
        # nobody has the database open to write, so it can be read as it stands.
        return _open_to_read(places.path, "mode=ro&immutable=1")


def _unreadable_log(places: Places, exc: sqlite3.Error) -> Exception:
    """What to say of a log that was left behind, where SQLite can't make the file it needs beside it."""
    folder = os.path.dirname(places.path)
    if os.access(folder, os.W_OK):
        return exc
    both = f"{os.path.basename(places.path)} and {os.path.basename(places.wal)}"
    text = f"{places.path} can't be read while {folder} can't be written: copy {both} elsewhere"
    return StoreFailed(text, path=places.path)


def _glance(places: Places) -> None:
    """Raise what `open_reader` raises, and leave no file of a log beside a database that has none."""
    _check_kind(places.path)
    quiet = _is_quiet(places)
    if quiet is not None:
        try:
            _close(_open_to_read(places.path, "mode=ro&immutable=1"))
            return
        except (sqlite3.Error, NotAStore, StoreTooNew):
            if _is_quiet(places) == quiet:
                raise
    _close(open_reader(places))  # somebody writes it now


def _check_kind(path: str) -> None:
    """Raise `NotAStore` for a folder or a device: of those SQLite says that the disk has failed."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise NotAStore(f"{path} is {'a folder' if os.path.isdir(path) else 'no plain file'}", path=path)


def _is_quiet(places: Places) -> Optional[Tuple[int, int, int]]:
    """What tells a database that nobody has open to write from one that was; None if somebody may."""
    if places.is_missing() or os.path.exists(places.wal) or os.path.exists(places.path + "-journal"):
        return None
    found = os.stat(places.path)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


def _close(conn: Optional[sqlite3.Connection]) -> None:
    if conn is not None:
        conn.close()


def _open_to_read(path: str, options: str) -> Optional[sqlite3.Connection]:
    if os.path.isfile(path) and 0 < os.stat(path).st_size < HEADER_BYTES:
        # SQLite would take a few bytes for an empty database, and write over them.
        raise NotAStore(f"{path} is no database: choose another path", path=path)
    conn = _connect(path, options)
    try:
        conn.execute("PRAGMA query_only = ON")
        version = _check_ours(conn, path)
        if version > VERSION and int(_word(conn, "min_reader") or version) > VERSION:
            raise _too_new(conn, path, version)
    except BaseException:
        conn.close()
        raise
    if version == 0:
        conn.close()
        return None
    return conn


def _connect(path: str, options: str) -> sqlite3.Connection:
    uri = f"file:{quote(os.fsencode(path))}?{options}"
    return sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=SLICE, check_same_thread=False, cached_statements=64
    )


def check_writable(places: Places) -> None:
    """Make the folder if it is missing. Raises `StoreReadOnly` where the store can't be written.

    Asked of the kernel: SQLite would open a file that it may only read, and fail at the first write.
    """
    folder = os.path.dirname(places.path)
    try:
        make_folder(folder)
    except OSError as exc:
        if kind_of(exc) is Kind.READ_ONLY:
            raise _read_only(places.path, folder) from exc
        raise
    for name in (folder, places.path, places.wal):
        if os.path.exists(name) and not os.access(name, os.W_OK):
            raise _read_only(places.path, name)
    make_folder(places.runners)


def _read_only(path: str, what: str) -> StoreReadOnly:
    return StoreReadOnly(f"{path} can only be read: make {what} writable to write to it", path=path)


# -- whose file it is ---------------------------------------------------------------------------------


def _check_ours(conn: sqlite3.Connection, path: str) -> int:
    """The schema's version, 0 for an empty database. Raises `NotAStore`."""
    # In one transaction: between two looks another process could have made the store.
    own = not conn.in_transaction
    try:
        if own:
            conn.execute("BEGIN")
        tables = conn.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        application = conn.execute("PRAGMA application_id").fetchone()[0]
        version = int(conn.execute("PRAGMA user_version").fetchone()[0])
    except sqlite3.DatabaseError as exc:
        if kind_of(exc) is Kind.NO_DATABASE:
            raise NotAStore(f"{path} is no database: choose another path", path=path) from exc
        raise
    finally:
        if own and conn.in_transaction:
            conn.execute("ROLLBACK")
    if application == APPLICATION_ID:
        return version
    if application or version or tables:
        raise NotAStore(f"{path} is the database of another application: choose another path", path=path)
    return 0


def _too_new(conn: sqlite3.Connection, path: str, version: int) -> StoreTooNew:
    who = _word(conn, "written_by") or "a newer version"
    return StoreTooNew(
        f"{path} has schema {version}, written by {who}; this version knows schema {VERSION}:"
        " upgrade syncagent",
        path=path,
        version=version,
    )


def _word(conn: sqlite3.Connection, key: str) -> Optional[str]:
    try:
        row = conn.execute("SELECT v FROM store WHERE k = ?", (key,)).fetchone()
    except sqlite3.OperationalError:
        return None  # a schema of the future has no such table
    return str(row[0]) if row is not None else None


# -- making and migrating -----------------------------------------------------------------------------


def _prepare(conn: sqlite3.Connection, path: str) -> None:
    """Make the tables in an empty database, bring older ones up to date, refuse newer ones."""
    version = _check_ours(conn, path)
    if version > VERSION:
        raise _too_new(conn, path, version)
    if version == 0:
        import sqlite_utils  # noqa: F401  before the database is locked: it takes a tenth of a second

        in_transaction(conn, lambda: _create(conn, path))
    elif version < VERSION:
        migrate(conn, path, migrations=MIGRATIONS, target=VERSION)


def in_transaction(conn: sqlite3.Connection, work: Callable[[], Any]) -> None:
    conn.execute("BEGIN IMMEDIATE")
    try:
        work()
        conn.execute("COMMIT")
    except BaseException:
        if conn.in_transaction:
            conn.execute("ROLLBACK")
        raise


def _create(conn: sqlite3.Connection, path: str) -> None:
    if _check_ours(conn, path):
        return  # another process was faster
    import sqlite_utils

    # Its statements stay inside our transaction, in every version, as long as no rows go through it.
    db = sqlite_utils.Database(conn)
    db.create_table("store", {"k": str, "v": str}, pk="k")
    needed = {"uid", "meta", "created", "updated", "epoch", "next_seq", "turns", "state", "rev"}
    defaults = {"meta": "{}", "epoch": 0, "next_seq": 1, "turns": 0, "state": "{}", "rev": 0}
    db.create_table("sessions", dict(SESSIONS), pk="id", not_null=needed, defaults=defaults)
    needed = {"sid", "seq", "n", "type", "time", "data"}
    db.create_table("events", dict(EVENTS), pk=("sid", "seq"), not_null=needed)
    db.create_table("control", dict(CONTROL), pk="id", not_null={"sid"})
    # What sqlite-utils has no words for: numbers that are never used again, an index of some rows.
    db.execute(
        "CREATE TABLE runners(id INTEGER PRIMARY KEY AUTOINCREMENT, pid INTEGER NOT NULL,"
        " host TEXT NOT NULL, boot TEXT NOT NULL, started INTEGER NOT NULL, lock TEXT NOT NULL)"
    )
    db.execute("CREATE UNIQUE INDEX sessions_uid ON sessions(uid)")
    db.execute("CREATE INDEX events_surface ON events(sid, seq) WHERE surface IS NOT NULL")
    words = {"id": uuid.uuid4().hex, "min_reader": str(MIN_READER), "written_by": f"syncagent {__version__}"}
    conn.executemany("INSERT INTO store(k, v) VALUES (?, ?)", list(words.items()))
    conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    conn.execute(f"PRAGMA user_version = {VERSION}")


def migrate(conn: sqlite3.Connection, path: str, *, migrations: Migrations, target: int) -> None:
    """Bring an older schema to `target`, one transaction for each version, after a copy was made.

    The copy is `<path>.v<version>.bak`; it is complete, whatever happens to the migration.
    """
    version = _check_ours(conn, path)
    copy = f"{path}.v{version}.bak"
    if not os.path.exists(copy):
        draft = f"{copy}.{os.getpid()}"
        make_database_file(draft)
        backup = _connect(draft, "mode=rw")
        try:
            conn.backup(backup)
        finally:
            backup.close()
        os.replace(draft, copy)

    def step() -> None:
        found = _check_ours(conn, path)
        if found < target:  # else another process was faster
            migrations[found](conn)
            conn.execute(f"PRAGMA user_version = {found + 1}")
            conn.execute("UPDATE store SET v = ? WHERE k = 'written_by'", (f"syncagent {__version__}",))

    while _check_ours(conn, path) < target:
        in_transaction(conn, step)


# -- pragmas ------------------------------------------------------------------------------------------


def set_pragmas(conn: Any, path: str, journal: str, patience: Patience) -> None:
    """Set what durability needs, and read it back: SQLite answers with what it did, not with an error.

    With a write-ahead log FULL makes each commit durable; with a rollback journal only EXTRA does,
    which also syncs the folder after the journal's end. Raises `WALUnavailable` and `StoreFailed`.
    """
    set_journal(conn, path, journal, patience)
    level, name = (2, "FULL") if journal == "wal" else (3, "EXTRA")
    conn.execute(f"PRAGMA synchronous = {name}")
    found = conn.execute("PRAGMA synchronous").fetchone()[0]
    if found != level:
        raise StoreFailed(f"{path}: synchronous is {found}, not {name}", path=path)
    # Several processes that checkpoint at once can lose the log in SQLite before 3.51.3.
    conn.execute("PRAGMA wal_autocheckpoint = 0")


def set_journal(conn: Any, path: str, journal: str, patience: Patience) -> None:
    while True:
        try:
            answer = str(conn.execute(f"PRAGMA journal_mode = {journal}").fetchone()[0]).lower()
        except sqlite3.OperationalError as exc:
            if "locking protocol" in str(exc) and journal == "wal":
                raise _no_wal(path, str(exc)) from exc
            if kind_of(exc) is not Kind.BUSY:
                raise
            answer = "locked"
        if answer == journal:
            return
        if answer != "locked" and journal == "wal":
            raise _no_wal(path, f"its journal mode stays {answer!r}")
        patience.check()
        time.sleep(0.005)


def _no_wal(path: str, why: str) -> WALUnavailable:
    return WALUnavailable(
        f'{path}: write-ahead logging is refused ({why}): use a local disk, or ask for journal="delete"',
        path=path,
    )
