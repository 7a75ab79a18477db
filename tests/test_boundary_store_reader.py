"""Reading writes nothing, waits for nobody and names what it can't read."""

import os
import sqlite3

import pytest
import store_child
from hypothesis import given
from hypothesis import strategies as st
from logs import Log, examples, lines, valid_logs
from store_child import ignore, put_all

from syncagent.boundary.store.sqlite import SQLiteStore
from syncagent.errors import InvalidLog, NotAStore, SessionNotFound, StoreBusy, StoreCorrupt, StoreFailed
from syncagent.log import check, closers
from syncagent.log.folds import SURFACE


@pytest.fixture
def store(tmp_path):
    with SQLiteStore(tmp_path / "a.db", busy_timeout=60) as store:
        yield store


def write(store, session, events, **options):
    opened = store.create(session, on_failure=ignore, **options)
    put_all(store, opened, events)
    return opened


def change(store, statement):
    conn = sqlite3.connect(store.path)
    conn.execute(statement)
    conn.commit()
    conn.close()


# -- events ---------------------------------------------------------------------------------------------


def test_the_events_after_a_number_are_read(store):
    log = Log().whole("u-1").asking("u-2").chunk("a").chunk("b")
    write(store, "s", log.events)
    write(store, "t", log.events[:3])
    for since in range(-1, len(log.events) + 3):
        assert list(store.read("s", since=since)) == log.events[max(0, since) :]
    assert [e.type for e in store.read("s", types=SURFACE)].count("turn/end") == 1
    assert list(store.read("s", types=["turn/start"], since=3)) == [log.events[10]]


def test_what_is_not_there_is_not_found(store, tmp_path):
    for name in ("s", "t"):
        for ask in (lambda n: list(store.read(n)), store.inspect):
            with pytest.raises(SessionNotFound, match="there is no session") as caught:
                ask(name)
            assert caught.value.path == store.path
        if name == "s":
            assert os.listdir(tmp_path) == [], "asking makes no file"
            assert store.sessions() == []
            write(store, "s", [])
    assert list(store.read("s")) == []


def test_a_wrong_id_is_refused_when_it_is_asked_for(store):
    for ask in (store.read, store.inspect):
        with pytest.raises(ValueError, match="can't name a session"):
            ask("../s")


def test_a_reader_that_was_left_half_way_holds_nothing(store):
    """Neither a transaction nor, once it is gone, a descriptor."""
    write(store, "s", Log().whole().events)
    events = store.read("s")
    next(events)
    put_all(store, store.create("t", on_failure=ignore), Log().whole().events)
    assert store._writer._submit(lambda desk, patience: desk.checkpoint(), None), "a reader is in the way"
    events.close()


@pytest.mark.parametrize("data", ["'text'", "x'00000000'", "''"])
def test_a_damaged_event_is_named_and_the_others_are_read(store, data):
    log = Log().whole("u-1").whole("u-2")
    opened = write(store, "s", log.events)
    write(store, "t", log.events)
    change(store, f"UPDATE events SET data = {data} WHERE seq = 7 AND sid = {opened.lease.sid}")
    found = []
    with pytest.raises(StoreCorrupt) as caught:
        for event in store.read("s"):
            found.append(event)
    assert (caught.value.session, caught.value.seq, found) == ("s", 7, log.events[:6])
    assert list(store.read("s", since=7)) == log.events[7:]
    assert list(store.read("t")) == log.events, "other sessions stay readable"
    with pytest.raises(StoreCorrupt):
        store.inspect("s")


def test_another_file_is_no_store(tmp_path):
    (tmp_path / "a.db").write_bytes(b"x" * 4096)
    with pytest.raises(NotAStore):
        SQLiteStore(tmp_path / "a.db").sessions()


def test_a_path_that_cannot_be_read_says_so(tmp_path):
    loop = tmp_path / "loop"
    os.symlink(loop, loop)
    with pytest.raises(StoreFailed, match="can't be (opened|read)") as caught:
        SQLiteStore(loop).sessions()
    assert caught.value.path == str(loop)


def test_a_locked_file_is_waited_for_and_then_busy(tmp_path):
    with SQLiteStore(tmp_path / "a.db", journal="delete") as store:
        write(store, "s", Log().whole().events)
        conn = sqlite3.connect(store.path, isolation_level=None)
        conn.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreBusy):
            SQLiteStore(store.path, busy_timeout=0.2).sessions()
        conn.execute("ROLLBACK")
        conn.close()
        assert len(list(store.read("s"))) == 9


# -- one session as it stands ---------------------------------------------------------------------------


def test_a_live_session_is_inspected_with_its_turn_open(store):
    log = Log().asking().chunk("Hel")
    write(store, "s", log.events)
    seen = store.inspect("s")
    assert seen.live and seen.events == log.events and seen.closers == []


@given(valid_logs(turns=2), st.data())
@examples(25)
def test_a_cold_session_is_inspected_as_a_repair_would_leave_it(tmp_path_factory, events, data):
    cut = events[: data.draw(st.integers(0, len(events)))]
    with SQLiteStore(tmp_path_factory.mktemp("store") / "a.db") as store:
        opened = write(store, "s", cut)
        store.release(opened.lease)
        seen = store.inspect("s")
        assert not seen.live and seen.closers == closers(check(cut))
        assert lines(seen.events) == lines(cut + seen.closers)
        assert store.open("s", on_failure=ignore).closers == seen.closers
        assert list(store.read("s")) == seen.events


def test_inspecting_writes_nothing(store, tmp_path):
    """Same bytes, same revision; and a second look gives the same."""
    opened = write(store, "s", Log().acting("c1", "c2").call("c1").events)
    store.release(opened.lease)
    store.close()

    def state():
        conn = sqlite3.connect(f"file:{store.path}?mode=ro", uri=True)
        rev = conn.execute("SELECT rev, epoch, next_seq FROM sessions").fetchone()
        conn.close()
        with open(store.path, "rb") as file:
            return rev, file.read()

    before = state()
    looks = [SQLiteStore(store.path).inspect("s") for _ in range(2)]
    assert looks[0] == looks[1] and len(looks[0].closers) == 4
    assert state() == before


@pytest.mark.concurrent
def test_inspecting_what_a_killed_process_left_writes_nothing(tmp_path):
    path = tmp_path / "a.db"
    child = store_child.start("hold", path, "s1")
    assert child.stdout.readline().startswith("held")
    store = SQLiteStore(path)
    assert store.inspect("s1").live
    store_child.kill(child)
    before = [open_bytes(path), open_bytes(str(path) + "-wal")]
    seen = store.inspect("s1")
    assert not seen.live and [event.type for event in seen.closers][-1] == "turn/end"
    assert [open_bytes(path), open_bytes(str(path) + "-wal")] == before


def open_bytes(name):
    with open(name, "rb") as file:
        return file.read()


def test_a_session_whose_kept_state_is_wrong_is_inspected_all_the_same(store):
    log = Log().whole("u-1").asking("u-2")
    store.release(write(store, "s", log.events).lease)
    for state in ("nonsense", '{"seq":3}'):
        change(store, f"UPDATE sessions SET state = '{state}'")
        assert [event.type for event in store.inspect("s").closers] == ["step/end", "turn/end"]


def test_a_log_that_breaks_a_rule_says_which(store):
    events = Log().turn().turn().events
    opened = store.create("s", on_failure=ignore)
    store.append(opened.lease, events)
    store.flush()
    store.release(opened.lease)
    with pytest.raises(InvalidLog) as caught:
        store.inspect("s")
    assert (caught.value.rule, caught.value.seq) == ("L2", 2)
    assert list(store.read("s")) == events, "it can still be read"


# -- the list -------------------------------------------------------------------------------------------


def test_the_list_tells_how_each_session_stands(store):
    for name, events in (
        ("empty", []),
        ("done", Log().whole("u-1").whole("u-2").events),
        ("running", Log().whole("u-1").asking("u-2").events),
        ("stopped", Log().asking().end_step().end_turn("aborted").events),
        ("died", Log().asking().chunk("x").events),
    ):
        opened = write(store, name, events, meta={"title": name})
        if name in ("died", "done"):
            store.release(opened.lease)
    infos = {info.id: info for info in store.sessions()}
    found = {name: (info.live, info.turns, info.ending) for name, info in infos.items()}
    assert found == {
        "empty": (True, 0, None),
        "done": (False, 2, "completed"),
        "running": (True, 2, "open"),
        "stopped": (True, 1, "aborted"),
        "died": (False, 1, "unfinished"),
    }
    live, cold = infos["running"], infos["done"]
    assert live.pid == os.getpid() and live.host and live.since >= live.created
    assert (cold.pid, cold.host, cold.since) == (None, None, None)
    assert all(info.meta == {"title": name} for name, info in infos.items())
    store.open("died", on_failure=ignore)
    assert {info.id: info.ending for info in store.sessions()}["died"] == "interrupted"


def test_the_last_updated_session_comes_first(store):
    old = write(store, "old", Log().whole("u-1").events)
    write(store, "new", Log().whole("u-1").events)
    change(store, "UPDATE sessions SET updated = 5 + id")
    assert [info.id for info in store.sessions()] == ["new", "old"]
    store.release(old.lease)


@pytest.mark.parametrize("meta", ["nonsense", "[1]", "null"])
def test_damaged_words_about_a_session_do_not_hide_it(store, meta):
    write(store, "s", [])
    change(store, f"UPDATE sessions SET meta = '{meta}'")
    assert [(info.id, info.meta) for info in store.sessions()] == [("s", {})]
