"""A session's rows are read in order and in pages, and damage is named by its place."""

import json
import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st
from logs import Log, examples, lines, valid_logs

from syncagent.boundary.store import scan as module
from syncagent.boundary.store.rows import pack
from syncagent.boundary.store.scan import fold_tail, load_state, scan
from syncagent.errors import InvalidLog, StoreCorrupt
from syncagent.log import LogState, check
from syncagent.log.folds import SURFACE


def table(events, sid=1):
    conn = sqlite3.connect(":memory:", isolation_level=None)
    conn.execute(
        "CREATE TABLE events(sid INTEGER NOT NULL, seq, n, type, time, surface, data, PRIMARY KEY(sid, seq))"
    )
    conn.execute("CREATE INDEX events_surface ON events(sid, seq) WHERE surface IS NOT NULL")
    for other in (sid - 1, sid, sid + 1):  # neighbours must not be mixed up with it
        rows = [(other, *row) for row in pack(events)]
        conn.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
    return conn


def read(conn, since=0, until=None, **options):
    if until is None:
        until = conn.execute("SELECT max(seq + n) FROM events WHERE sid = 1").fetchone()[0] or 1
    where = {"path": "runs.db", "session": "s", "sid": 1}
    return list(scan(conn, since=since, until=until, **where, **options))


def fold(conn, state="{}", next_seq=None, **options):
    if next_seq is None:
        next_seq = conn.execute("SELECT max(seq + n) FROM events WHERE sid = 1").fetchone()[0] or 1
    where = {"path": "runs.db", "session": "s", "sid": 1}
    return fold_tail(conn, state=state, next_seq=next_seq, **where, **options)


@given(valid_logs(), st.integers(0, 60), st.integers(0, 60))
@examples(60)
def test_any_part_of_a_log_is_read_as_it_was_written(events, first, second):
    conn = table(events)
    since, until = min(first, second), max(first, second) + 1
    if until > len(events) + 1:
        until = len(events) + 1
    assert lines(read(conn, since, until)) == lines(events[since : until - 1])
    conn.close()


@pytest.mark.parametrize("rows, size", [(1, 1 << 20), (3, 1 << 20), (512, 1), (512, 100)])
def test_pages_of_any_size_give_the_same(monkeypatch, rows, size):
    monkeypatch.setattr(module, "PAGE_ROWS", rows)
    monkeypatch.setattr(module, "PAGE_TEXT", size)
    log = Log().whole("u-1").asking("u-2").chunk("a").chunk("b").chunk("c")
    conn = table(log.events)
    for since in range(len(log.events) + 2):
        assert read(conn, since) == log.events[since:]
        kept = [event for event in log.events[since:] if event.type == "assistant/chunk"]
        assert read(conn, since, types={"assistant/chunk"}) == kept
    conn.close()


def test_no_transaction_is_open_between_two_pages(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAGE_ROWS", 1)
    conn = table(Log().whole().events)
    events = scan(conn, path="p", session="s", sid=1, since=0, until=10)
    next(events)
    conn.execute("BEGIN IMMEDIATE")
    conn.execute("UPDATE events SET time = time")
    conn.execute("COMMIT")
    assert len(list(events)) == 8
    conn.close()


def test_only_some_types_are_read():
    log = Log().whole("u-1").whole("u-2")
    conn = table(log.events)
    for types in ({"turn/end"}, SURFACE, {"turn/start", "turn/end"}, set()):
        assert read(conn, types=types) == [event for event in log.events if event.type in types]
    conn.close()


def test_what_makes_messages_is_read_by_an_index_of_its_own():
    conn = table(Log().whole().events)
    asked = []
    conn.set_trace_callback(asked.append)
    read(conn, types=SURFACE)
    conn.set_trace_callback(None)
    query = next(sql for sql in asked if "surface IS NOT NULL" in sql)
    plan = " ".join(row[3] for row in conn.execute("EXPLAIN QUERY PLAN " + query))
    assert "events_surface" in plan and "TEMP B-TREE" not in plan
    conn.close()


LOG = Log().whole("u-1").asking("u-2").chunk("a").chunk("b").chunk("c")  # the last row begins at 15


@pytest.mark.parametrize(
    "damage, seq",
    [
        ("UPDATE events SET data = 'text' WHERE seq = 4", 4),
        ("UPDATE events SET data = x'000000' WHERE seq = 4", 4),
        ("UPDATE events SET data = cast(x'00ff00' AS TEXT) WHERE seq = 4", 4),
        ("UPDATE events SET data = '' WHERE seq = 4", 4),
        ("UPDATE events SET data = 'text' WHERE seq = 15", 15),
        ("UPDATE events SET n = 2 WHERE seq = 15", 15),
        ("UPDATE events SET n = 2 WHERE seq = 4", 4),
        ("UPDATE events SET time = 'noon' WHERE seq = 4", 4),
        ("DELETE FROM events WHERE seq = 4", 4),
        ("DELETE FROM events WHERE seq = 1", 1),
        ("DELETE FROM events WHERE seq = 15", 15),
        ("UPDATE events SET seq = 400 WHERE seq = 4", 4),
    ],
)
def test_damage_is_named_by_its_place_and_what_stood_before_is_read(damage, seq):
    conn = table(LOG.events)
    conn.execute(damage)
    found = []
    with pytest.raises(StoreCorrupt) as caught:
        for event in scan(conn, path="runs.db", session="s", sid=1, since=0, until=18):
            found.append(event)
    assert (caught.value.seq, caught.value.session, caught.value.path) == (seq, "s", "runs.db")
    assert f"event {seq}" in str(caught.value) and found == LOG.events[: seq - 1]
    conn.close()


def test_a_page_that_cannot_be_read_is_damage_where_it_begins(monkeypatch):
    """SQLite tells of a torn page only when it comes to it."""

    class Cursor:
        def __init__(self, rows):
            self.rows = rows

        def __iter__(self):
            yield from self.rows
            raise sqlite3.DatabaseError("database disk image is malformed")

        def fetchone(self):
            return (1,)

        def close(self):
            pass

    class Conn:
        def execute(self, query, values):
            return Cursor([row[:4] + (row[5],) for row in pack(LOG.events)[:6]])

    with pytest.raises(StoreCorrupt, match="malformed") as caught:
        list(scan(Conn(), path="runs.db", session="s", sid=1, since=0, until=18))
    assert caught.value.seq == 7


def test_an_error_that_says_nothing_of_damage_is_itself():
    class Conn:
        def execute(self, query, values):
            raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(sqlite3.OperationalError):
        list(scan(Conn(), path="runs.db", session="s", sid=1, since=0, until=18))


# -- the state ------------------------------------------------------------------------------------------


@given(valid_logs(turns=4), st.data())
@examples(60)
def test_folding_the_tail_gives_what_folding_everything_gives(events, data):
    """From whatever balanced point the row keeps."""
    state, dumps = LogState(), ["{}"]
    for event in events:
        check([event], state)
        if state.phase == "idle":
            dumps.append(json.dumps(state.dump()))
    conn = table(events)
    kept = data.draw(st.sampled_from(dumps))
    assert fold(conn, kept, next_seq=len(events) + 1) == state == check(events)
    conn.close()


@given(valid_logs(turns=3), st.data())
@examples(60)
def test_a_log_that_was_cut_anywhere_is_folded_from_its_last_balanced_point(events, data):
    cut = events[: data.draw(st.integers(0, len(events)))]
    state, dump = LogState(), "{}"
    for event in cut:
        check([event], state)
        dump = json.dumps(state.dump()) if state.phase == "idle" else dump
    conn = table(cut)
    assert fold(conn, dump, next_seq=len(cut) + 1) == state
    conn.close()


DAMAGED = ["", "null", "[]", "{", '{"seq":"x"}', '{"seq":-1}', '{"seq":400}', '{"pending":[1]}', None, 7]
WRONG = ['{"seq":3}', '{"seq":10,"turn":7}']


@pytest.mark.parametrize("state", DAMAGED + WRONG)
def test_a_damaged_state_only_costs_time(state):
    conn = table(LOG.events)
    assert fold(conn, state) == check(LOG.events)
    conn.close()


def test_an_empty_state_is_that_of_an_empty_log():
    assert load_state("{}", 1) == LogState()


@pytest.mark.parametrize("next_seq", [1, 10, 17, 19])
def test_a_row_that_disagrees_with_the_events_is_damage(next_seq):
    conn = table(LOG.events)
    with pytest.raises(StoreCorrupt) as caught:
        fold(conn, next_seq=next_seq)
    assert caught.value.seq == min(next_seq, 18)
    conn.close()


def test_a_log_that_breaks_a_rule_says_which():
    conn = table(Log().turn().turn().events)
    with pytest.raises(InvalidLog) as caught:
        fold(conn)
    assert (caught.value.rule, caught.value.seq) == ("L2", 2)
    conn.close()


def test_a_fold_can_be_given_up():
    class Stop(Exception):
        pass

    def stop():
        raise Stop

    conn = table(LOG.events)
    with pytest.raises(Stop):
        fold(conn, check=stop)
    conn.close()
