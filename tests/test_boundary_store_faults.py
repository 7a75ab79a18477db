"""What a failure of SQLite or the file system means to the store."""

import errno
import os
import resource
import sqlite3
import time

import pytest

from syncagent.boundary.store.faults import Kind, Patience, fault_of, kind_of, looks_full, patiently
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import (
    NotAStore,
    StoreBusy,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreReadOnly,
    StoreReplaced,
)


class Named(sqlite3.OperationalError):
    """An error as newer Pythons raise it."""

    def __init__(self, name):
        super().__init__("some words")
        self.sqlite_errorname = name


BY_NAME = {
    "SQLITE_FULL": Kind.FULL,
    "SQLITE_BUSY": Kind.BUSY,
    "SQLITE_BUSY_SNAPSHOT": Kind.BUSY,
    "SQLITE_LOCKED_SHAREDCACHE": Kind.BUSY,
    "SQLITE_PROTOCOL": Kind.BUSY,
    "SQLITE_READONLY_DBMOVED": Kind.READ_ONLY,
    "SQLITE_CORRUPT_INDEX": Kind.CORRUPT,
    "SQLITE_NOTADB": Kind.NO_DATABASE,
    "SQLITE_CANTOPEN": Kind.CANT_OPEN,
    "SQLITE_IOERR_WRITE": Kind.WRITE,
    "SQLITE_IOERR_FSYNC": Kind.IO,
    "SQLITE_IOERR": Kind.IO,
    "SQLITE_CONSTRAINT_PRIMARYKEY": Kind.CONSTRAINT,
    "SQLITE_NOMEM": Kind.IO,
}


@pytest.mark.parametrize("name", BY_NAME)
def test_an_error_is_known_by_its_name(name):
    assert kind_of(Named(name)) is BY_NAME[name]


BY_MESSAGE = {
    "database or disk is full": Kind.FULL,
    "database is locked": Kind.BUSY,
    "database table is locked: events": Kind.BUSY,
    "locking protocol": Kind.BUSY,
    "attempt to write a readonly database": Kind.READ_ONLY,
    "database disk image is malformed": Kind.CORRUPT,
    "file is not a database": Kind.NO_DATABASE,
    "unable to open database file": Kind.CANT_OPEN,
    "disk I/O error": Kind.IO,
    "UNIQUE constraint failed: events.sid, events.seq": Kind.CONSTRAINT,
    "no such table: events": Kind.OTHER,
}


@pytest.mark.parametrize("message", BY_MESSAGE)
def test_without_a_name_an_error_is_known_by_its_message(message):
    """As before Python 3.11, and as a test raises it that puts a failure in."""
    assert kind_of(sqlite3.OperationalError(message)) is BY_MESSAGE[message]


def test_the_messages_are_those_of_this_sqlite(tmp_path):
    conn = sqlite3.connect(tmp_path / "a.db", isolation_level=None, timeout=0)
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None, timeout=0)
    junk = tmp_path / "junk.db"
    junk.write_bytes(b"no database at all" * 100)
    conn.execute("CREATE TABLE t(x UNIQUE)")
    conn.execute("PRAGMA max_page_count = 4")
    reader = sqlite3.connect(junk)
    found = []
    for work in (
        lambda: conn.execute("INSERT INTO t VALUES (zeroblob(100000))"),
        lambda: (conn.execute("BEGIN IMMEDIATE"), other.execute("BEGIN IMMEDIATE")),
        lambda: conn.executemany("INSERT INTO t VALUES (?)", [(1,), (1,)]),
        lambda: sqlite3.connect(f"file:{tmp_path}/none.db?mode=ro", uri=True),
        lambda: reader.execute("SELECT 1 FROM sqlite_master"),
    ):
        with pytest.raises(sqlite3.Error) as caught:
            work()
        found.append(kind_of(caught.value))
    conn.close()
    other.close()
    reader.close()
    assert found == [Kind.FULL, Kind.BUSY, Kind.CONSTRAINT, Kind.CANT_OPEN, Kind.NO_DATABASE]


@pytest.mark.parametrize(
    "number, kind",
    [
        (errno.ENOSPC, Kind.FULL),
        (errno.EDQUOT, Kind.FULL),
        (errno.EACCES, Kind.READ_ONLY),
        (errno.EROFS, Kind.READ_ONLY),
        (errno.EIO, Kind.IO),
    ],
)
def test_an_error_of_the_file_system_is_known_by_its_number(number, kind):
    assert kind_of(OSError(number, "x")) is kind


@pytest.mark.parametrize(
    "exc, cls",
    [
        (sqlite3.OperationalError("database or disk is full"), StoreFull),
        (sqlite3.OperationalError("database is locked"), StoreBusy),
        (sqlite3.OperationalError("attempt to write a readonly database"), StoreReadOnly),
        (sqlite3.DatabaseError("database disk image is malformed"), StoreCorrupt),
        (sqlite3.DatabaseError("file is not a database"), NotAStore),
        (sqlite3.OperationalError("unable to open database file"), StoreFailed),
        (sqlite3.OperationalError("disk I/O error"), StoreFailed),
        (RuntimeError("who knows"), StoreFailed),
    ],
)
def test_each_failure_has_its_error_which_names_the_file_and_the_cause(exc, cls):
    error = fault_of(exc, path="/some/where.db").error()
    assert type(error) is cls and error.path == "/some/where.db"
    assert "/some/where.db" in str(error) and str(exc) in str(error) and error.__cause__ is exc


def test_each_one_who_meets_a_fault_gets_an_exception_of_its_own():
    for fault in (
        fault_of(OSError(errno.EIO, "x"), path="p"),
        fault_of(StoreReplaced("gone", path="p"), path="p"),
    ):
        first, second = fault.error(), fault.error()
        assert first is not second and type(first) is type(second) and str(first) == str(second)


def test_each_one_gets_a_copy_of_an_error_with_all_that_it_holds():
    error = StoreCorrupt("x", path="p", session="s", seq=7)
    error.__cause__ = OSError("bad page")
    first, second = fault_of(error, path="p").error(), fault_of(error, path="p").error()
    assert len({id(error), id(first), id(second)}) == 3
    for copied in (first, second):
        assert type(copied) is StoreCorrupt and str(copied) == "x" and copied.__cause__ is error.__cause__
        assert (copied.path, copied.session, copied.seq) == ("p", "s", 7)


def test_a_quota_is_told_from_a_broken_disk(tmp_path):
    """A limit on file sizes stands for it; to SQLite both are a failed write."""
    failed = Named("SQLITE_IOERR_WRITE")
    assert not looks_full(failed, folder=str(tmp_path), largest=1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        assert looks_full(failed, folder=str(tmp_path), largest=1 << 20)
        assert not looks_full(failed, folder=str(tmp_path), largest=1000)
        assert looks_full(sqlite3.OperationalError("disk I/O error"), folder=str(tmp_path), largest=1 << 20)
        assert not looks_full(Named("SQLITE_IOERR_FSYNC"), folder=str(tmp_path), largest=1 << 20)
        assert not looks_full(RuntimeError("x"), folder=str(tmp_path), largest=1 << 20)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        assert looks_full(failed, folder=str(tmp_path), largest=0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert os.listdir(tmp_path) == []


def test_a_file_that_cannot_be_probed_counts_as_broken(tmp_path):
    assert not looks_full(Named("SQLITE_IOERR_WRITE"), folder=str(tmp_path / "none"), largest=0)


def test_patience_ends_with_the_time_and_names_who_is_in_the_way():
    Patience(60, path="p").check(1)
    with pytest.raises(StoreBusy, match="process 17 has held the database for 0 s"):
        Patience(0, path="p").check(17)
    with pytest.raises(StoreBusy, match="another process"):
        Patience(0, path="p").check()


def test_who_is_in_the_way_is_logged_once_after_a_while(monkeypatch, caplog):
    patience = Patience(60, path="p")
    patience.check(17)
    assert caplog.messages == []
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 3)
    patience.check(17)
    patience.check(17)
    assert caplog.messages == ["p: waiting for process 17, which holds the database"]


def test_patience_ends_with_its_token():
    with CancellationToken() as token:
        token.cancel()
        with pytest.raises(Cancelled) as caught:
            Patience(60, path="p", token=token).check()
        assert caught.value.token is token


def test_a_locked_database_is_tried_again_until_it_is_free():
    tries = iter([sqlite3.OperationalError("database is locked")] * 3)

    def work():
        for exc in tries:
            raise exc
        return "done"

    assert patiently(work, Patience(60, path="p")) == "done"


def test_another_error_is_not_tried_again():
    conn = sqlite3.connect(":memory:")
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        patiently(lambda: conn.execute("SELECT * FROM t"), Patience(60, path="p"))
    conn.close()


def test_a_locked_database_is_busy_in_the_end(tmp_path):
    conn = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    conn.execute("BEGIN EXCLUSIVE")
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None, timeout=0.05)
    begun = time.monotonic()
    with pytest.raises(StoreBusy):
        patiently(lambda: other.execute("BEGIN IMMEDIATE"), Patience(0.2, path="p"))
    assert time.monotonic() - begun < 20
    conn.close()
    other.close()
