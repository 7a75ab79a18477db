"""What the writer does to the tables, and the fence around it."""

import json

import pytest
from logs import Log

from syncagent.boundary.store import lease, schema
from syncagent.boundary.store.faults import Patience
from syncagent.boundary.store.files import Places
from syncagent.boundary.store.forks import ForkGuard
from syncagent.boundary.store.lease import RunnerLock, enter_runner
from syncagent.boundary.store.protocol import Lease
from syncagent.boundary.store.tables import (
    Progress,
    create_session,
    release_session,
    take_session,
    write_events,
)
from syncagent.errors import InvalidLog, SessionExists, SessionLive, SessionNotFound, StoreCorrupt


@pytest.fixture
def places(tmp_path):
    return Places.of(tmp_path / "a.db")


@pytest.fixture
def conn(places):
    conn = schema.open_writer(places, journal="wal", patience=Patience(60, path=places.path))
    yield conn
    conn.close()


def create(conn, places, events=(), state=None, runner=1):
    taken = create_session(conn, path=places.path, session="s", meta={"a": 1}, runner=runner)
    if events:
        write_events(conn, lease=taken.lease, progress=taken.progress, events=events, state=state)
    return taken


def take(conn, places, runner=2, steal=False, is_held=lambda sid: False, check=lambda: None):
    return take_session(
        conn, places=places, session="s", runner=runner, steal=steal, is_held=is_held, check=check
    )


def row(conn, *columns):
    return conn.execute(f"SELECT {', '.join(columns)} FROM sessions WHERE uid = 's'").fetchone()


def test_a_new_session_is_held_and_empty(conn, places):
    taken = create(conn, places)
    assert taken.lease == Lease(session="s", sid=1, epoch=1)
    assert taken.state.seq == 0 and taken.closers == []
    assert row(conn, "next_seq", "open_turn", "turns", "ending") == (1, None, 0, None)
    assert row(conn, "epoch", "runner") == (1, 1)
    assert json.loads(row(conn, "meta")[0]) == {"a": 1}
    with pytest.raises(SessionExists, match="already exists"):
        create(conn, places)


def test_the_projections_follow_the_events(conn, places):
    events = Log().whole("u-1").asking("u-2").events
    taken = create(conn, places)
    progress = taken.progress
    seen = []
    for event in events:
        progress = write_events(conn, lease=taken.lease, progress=progress, events=[event], state=None)
        seen.append((event.type, *row(conn, "next_seq", "open_turn", "turns", "ending")))
    at = {(kind, seq): rest for kind, seq, *rest in seen}
    assert at[("turn/start", 3)] == [2, 1, None]
    assert at[("turn/end", 10)] == [None, 1, "completed"]
    assert at[("user/message", 15)] == [11, 2, "completed"]
    assert row(conn, "rev") == (len(events),) and row(conn, "updated")[0] >= events[-1].time
    assert Progress().after(events) == Progress(
        next_seq=15, open_turn=11, turns=2, ending="completed", updated=events[-1].time
    )


def test_a_lost_lease_writes_nothing(conn, places):
    events = Log().put("m-1").events
    taken = create(conn, places)
    for change in ("epoch = epoch + 1", "epoch = epoch - 1, next_seq = 7"):
        conn.execute(f"UPDATE sessions SET {change}")
        after = write_events(conn, lease=taken.lease, progress=taken.progress, events=events, state=None)
        assert after is None
    assert conn.execute("SELECT count(*) FROM events").fetchone() == (0,)


def test_a_cold_session_is_taken_with_a_new_epoch_and_closed(conn, places):
    create(conn, places, Log().asking().chunk("Hel").chunk("lo").events)
    taken = take(conn, places)
    assert taken.lease.epoch == 2 and taken.state.phase == "idle" and taken.state.seq == 10
    assert [event.type for event in taken.closers] == ["assistant/message", "step/end", "turn/end"]
    assert row(conn, "runner", "epoch", "next_seq", "open_turn", "ending") == (2, 2, 11, None, "interrupted")
    assert json.loads(row(conn, "state")[0]) == taken.state.dump()
    again = take(conn, places)
    assert again.closers == [] and again.state == taken.state and again.progress == taken.progress


def test_a_session_that_is_not_there_is_not_found(conn, places):
    with pytest.raises(SessionNotFound):
        take(conn, places)


def test_a_live_session_is_refused_with_its_holder(conn, places):
    guard = ForkGuard(places.path)
    lock = RunnerLock.take(places, guard)
    create(conn, places, runner=enter_runner(conn, lock))
    pid = conn.execute("SELECT pid FROM runners").fetchone()[0]
    for steal in (False, True):
        with pytest.raises(SessionLive) as caught:
            take(conn, places, runner=99, steal=steal)
        assert caught.value.known and caught.value.pid == pid
        assert caught.value.since == row(conn, "since")[0] > 0
    assert row(conn, "epoch", "runner") == (1, 1)
    lock.drop(guard)


@pytest.mark.parametrize("how", ["another machine's", "another user's"])
def test_a_session_is_taken_by_force_where_its_owner_cannot_be_asked(conn, places, monkeypatch, how):
    guard = ForkGuard(places.path)
    lock = RunnerLock.take(places, guard)
    create(conn, places, runner=enter_runner(conn, lock))
    if how == "another machine's":
        conn.execute("UPDATE runners SET host = 'elsewhere', boot = 'another'")
    else:
        monkeypatch.setattr(lease.os, "open", deny)
    with pytest.raises(SessionLive, match="steal") as caught:
        take(conn, places, runner=99)
    assert not caught.value.known
    assert take(conn, places, runner=99, steal=True).lease.epoch == 2
    monkeypatch.undo()
    lock.drop(guard)


def deny(path, flags):
    raise PermissionError(13, "Permission denied", path)


def test_our_own_session_is_live_only_while_a_handle_holds_it(conn, places):
    """A lease that could not be given back, for want of space, is ours to take again."""
    guard = ForkGuard(places.path)
    lock = RunnerLock.take(places, guard)
    runner = enter_runner(conn, lock)
    create(conn, places, runner=runner)
    with pytest.raises(SessionLive):
        take(conn, places, runner=runner, is_held=lambda sid: sid == 1)
    assert take(conn, places, runner=runner).lease.epoch == 2
    lock.drop(guard)


def test_a_lease_is_given_back_only_by_the_one_who_has_it(conn, places):
    taken = create(conn, places)
    release_session(conn, Lease(session="s", sid=1, epoch=7))
    assert row(conn, "runner") == (1,)
    release_session(conn, taken.lease)
    assert row(conn, "runner", "since") == (None, None)


def test_a_log_that_breaks_a_rule_is_refused(conn, places):
    create(conn, places, Log().turn().turn().events)
    with pytest.raises(InvalidLog):
        take(conn, places)


def test_rows_that_are_missing_are_refused(conn, places):
    create(conn, places, Log().whole().events)
    conn.execute("DELETE FROM events WHERE seq = 9")
    with pytest.raises(StoreCorrupt) as caught:
        take(conn, places)
    assert caught.value.seq == 9
