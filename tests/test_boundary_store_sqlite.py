"""The store as a whole: what kills, forks, competitors and time do to it."""

import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
import store_child
from hypothesis import given
from hypothesis import strategies as st
from logs import Log, examples, lines, random_log, valid_logs
from store_child import ignore, put_all, shifted
from test_boundary_store_forks import in_child

from syncagent.boundary.store import backlog, schema, sqlite
from syncagent.boundary.store.sqlite import SQLiteStore
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import ForkedStore, InvalidLog, SessionLive
from syncagent.log import Event, LogState, check, closers
from syncagent.log.events import Unknown
from syncagent.testing.points import FailPoints


def integrity(path):
    conn = sqlite3.connect(path)
    try:
        return conn.execute("PRAGMA integrity_check").fetchone()[0]
    finally:
        conn.close()


# -- arguments ------------------------------------------------------------------------------------------


def test_only_what_keeps_its_promises_can_be_asked_for(tmp_path):
    for options in ({"durability": "normal"}, {"journal": "memory"}):
        with pytest.raises(ValueError):
            SQLiteStore(tmp_path / "a.db", **options)
    for method in ("create", "open"):
        with pytest.raises(ValueError, match="can't name a session"):
            getattr(SQLiteStore(tmp_path / "a.db"), method)("../x", on_failure=ignore)
    assert os.listdir(tmp_path) == []
    assert repr(SQLiteStore(tmp_path / "a.db")) == f"<SQLiteStore '{tmp_path}/a.db'>"


def test_importing_and_making_a_store_starts_and_loads_nothing(tmp_path):
    code = (
        "import sys, threading, os\n"
        "from syncagent.boundary.store.sqlite import SQLiteStore\n"
        f"store = SQLiteStore({str(tmp_path / 'a.db')!r})\n"
        "assert threading.active_count() == 1\n"
        "assert not {'sqlite_utils', 'requests', 'click', 'cattrs'} & set(sys.modules), sys.modules\n"
        f"assert os.listdir({str(tmp_path)!r}) == []\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_relative_path_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = SQLiteStore("a.db")
    monkeypatch.chdir("/")
    store.create("s", on_failure=ignore)
    store.close()
    assert store.path == str(tmp_path / "a.db") and (tmp_path / "a.db").exists()


# -- append and flush -----------------------------------------------------------------------------------


def test_an_event_that_cannot_be_stored_is_refused_and_stops_nobody(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store:
        opened = store.create("s", on_failure=ignore)
        good = Log().put("m-1").events
        for bad in (
            Event.from_text(1, 5, "inbox/put", good[0].text.replace("hello", "\ud800")),
            Event(seq=1, time=5, body=Unknown(name="\udc00/x", extra={"ignorable": True})),
            Event(seq=1, time=1 << 63, body=good[0].body),
        ):
            with pytest.raises(InvalidLog) as caught:
                store.append(opened.lease, [bad])
            assert (caught.value.rule, caught.value.seq) == ("L1", 1) and str(caught.value).isascii()
        with pytest.raises(InvalidLog):
            store.append(opened.lease, [good[0], Event(seq=2, time=-1, body=good[0].body)])
        put_all(store, opened, good)
        assert list(store.read("s")) == good


def test_any_text_survives(tmp_path):
    said = "before\0after \u2028 \x1b[2J 🙂 é \u202e \ufeff \\ \" ' %s {}"
    log = Log().asking().chunk(said).chunk(said).says(said).end_step().end_turn()
    with SQLiteStore(tmp_path / "a.db") as store:
        put_all(store, store.create("s", on_failure=ignore), log.events)
        assert lines(store.read("s")) == lines(log.events)


def test_appending_never_waits(tmp_path):
    """Not even while a commit is under way."""
    with FailPoints() as points, SQLiteStore(tmp_path / "a.db", points=points) as store:
        opened = store.create("s", on_failure=ignore)
        held = points.hold("store.commit.before")
        events = Log().put("m-1").put("m-2").events
        put_all(store, opened, events[:1], flush=False)
        assert held.reached.wait(60)
        put_all(store, opened, events[1:], flush=False)
        assert store.durable_seq(opened.lease) == 0 and list(store.read("s")) == []
        held.release()
        store.flush(opened.lease)
        assert store.durable_seq(opened.lease) == 2
        assert points.hits("store.append") == 2 and points.hits("store.flush") == 1


def test_a_point_that_refuses_an_append_leaves_nothing_of_it(tmp_path):
    with FailPoints() as points, SQLiteStore(tmp_path / "a.db", points=points) as store:
        opened = store.create("s", on_failure=ignore)
        events = Log().put("m-1").put("m-2").events
        points.fail("store.append", RuntimeError("no"), nth=2)
        with pytest.raises(RuntimeError):
            store.append(opened.lease, events)
        put_all(store, opened, events)
        assert list(store.read("s")) == events


def test_a_flush_whose_token_is_cancelled_does_not_begin(tmp_path):
    with SQLiteStore(tmp_path / "a.db") as store, CancellationToken() as token:
        opened = store.create("s", on_failure=ignore)
        token.cancel()
        for use in (
            lambda: store.flush(opened.lease, token=token),
            lambda: store.create("t", on_failure=ignore, token=token),
            lambda: store.open("s", on_failure=ignore, token=token),
        ):
            with pytest.raises(Cancelled):
                use()
        assert [info.id for info in store.sessions()] == ["s"]


# -- opening again --------------------------------------------------------------------------------------


@given(valid_logs(turns=3), st.data())
@examples(20)
def test_opening_a_cold_session_equals_a_fold_of_all_its_events(tmp_path_factory, events, data):
    """Wherever it was cut, however it was packed, in how many batches."""
    cut = events[: data.draw(st.integers(0, len(events)))]
    with SQLiteStore(tmp_path_factory.mktemp("store") / "a.db") as store:
        opened = store.create("s", on_failure=ignore)
        size = data.draw(st.integers(1, 30))
        for begin in range(0, len(cut), size):
            put_all(store, opened, cut[begin : begin + size])
        store.release(opened.lease)
        whole = check(cut)
        expected = closers(whole)
        again = store.open("s", on_failure=ignore)
        assert again.closers == expected and again.state == check(cut + expected)
        assert lines(store.read("s")) == lines(cut + expected)
        store.release(again.lease)
        third = store.open("s", on_failure=ignore)
        assert third.closers == [] and third.state == again.state, "a second open adds nothing"


def test_numbers_go_on_and_a_parked_inbox_stays(tmp_path):
    log = Log().whole("u-1").put("u-2").turn().taken("u-2")
    with SQLiteStore(tmp_path / "a.db") as store:
        put_all(store, store.create("s", on_failure=ignore), log.events)
    with SQLiteStore(tmp_path / "a.db") as store:
        opened = store.open("s", on_failure=ignore)
        assert [event.type for event in opened.closers] == ["inbox/put", "turn/end"]
        assert opened.state.turn == 2 and opened.state.seq == len(log.events) + 2
        pending = opened.state.pending["next_turn"]
        assert list(pending) == ["u-2"] and pending["u-2"].wake is False
        put_all(store, opened, shifted(Log().whole("u-3").events, opened.state.seq, 2, opened.state.time))
        assert opened.state.turn == 3 and list(opened.state.pending["next_turn"]) == ["u-2"]
        check(list(store.read("s")))


def test_an_unknown_type_is_refused_with_a_direction_unless_it_is_ignorable(tmp_path):
    log = Log().unknown("future/thing").put("m-1")
    with SQLiteStore(tmp_path / "a.db") as store:
        opened = store.create("s", on_failure=ignore)
        put_all(store, opened, log.events)
        store.release(opened.lease)
        assert store.open("s", on_failure=ignore).state.seq == 2
        odd = store.create("odd", on_failure=ignore)
        event = Event.from_dict({"seq": 1, "time": 5, "type": "future/thing", "data": {}})
        store.append(odd.lease, [event])
        store.flush()
        store.release(odd.lease)
        for ask in (lambda: store.open("odd", on_failure=ignore), lambda: store.inspect("odd")):
            with pytest.raises(InvalidLog, match="upgrade syncagent") as caught:
                ask()
            assert caught.value.seq == 1
        assert list(store.read("odd")) == [event]


def test_a_session_that_becomes_live_before_the_repair_is_written_is_not_repaired(tmp_path):
    """What decides is inside the transaction; who comes second waits for it, and is refused."""
    log = Log().asking().chunk("x")
    with FailPoints() as points, SQLiteStore(tmp_path / "a.db", points=points) as first:
        opened = first.create("s", on_failure=ignore)
        put_all(first, opened, log.events)
        first.release(opened.lease)
        held = points.hold("store.repair.before_commit")
        results = []
        winner = threading.Thread(target=lambda: results.append(first.open("s", on_failure=ignore)))
        winner.start()
        assert held.reached.wait(60) and held.info == {"session": "s", "events": 3}
        with SQLiteStore(tmp_path / "a.db") as second:
            failures = []

            def lose():
                try:
                    second.open("s", on_failure=ignore)
                except SessionLive as exc:
                    failures.append(exc)

            loser = threading.Thread(target=lose)
            loser.start()
            assert list(second.read("s")) == log.events, "nothing of a repair is seen before it is whole"
            held.release()
            winner.join()
            loser.join()
        assert len(results[0].closers) == 3 and failures[0].pid == os.getpid()
        assert len(list(first.read("s"))) == len(log.events) + 3


# -- kills ----------------------------------------------------------------------------------------------


@pytest.mark.once
@pytest.mark.concurrent
def test_after_kill_9_nothing_acknowledged_is_lost(tmp_path):
    """Twenty times, at random times; what was torn swallows nothing that comes after it."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    path = tmp_path / "a.db"
    for round in range(20):
        child = store_child.fork("append", path, "s1", rng.randrange(1 << 30))
        acknowledged = int(child.stdout.readline().split()[1])
        timer = threading.Timer(rng.uniform(0, 0.1), child.kill)
        timer.start()
        for line in child.stdout:
            acknowledged = int(line.split()[1])
        timer.join()
        assert child.wait() == -signal.SIGKILL
        with SQLiteStore(path) as store:
            before = list(store.read("s1"))
            state = check(before)
            assert len(before) >= acknowledged, (seed, round)
            opened = store.open("s1", on_failure=ignore)
            assert opened.closers == closers(state)
            more = shifted(Log().put(f"more-{round}").events, opened.state.seq, 0, opened.state.time)
            put_all(store, opened, more)
        with SQLiteStore(path) as store:
            events = list(store.read("s1"))
            assert lines(events) == lines(before + opened.closers + more)
            assert check(events).phase == "idle"
        assert integrity(path) == "ok"


def seed_cold_session(path, journal):
    """A session that died with a turn open: a call running, another not begun, a claim not entered."""
    log = Log().put("u-2").acting("a", "b", "c").call("a").output("a", "partial").call("b").result("b")
    with SQLiteStore(path, journal=journal) as store:
        put_all(store, store.create("s", on_failure=ignore), log.events)
    return log.events


def open_and_die(path, journal, statement):
    """Open the session in a child that dies before its n-th SQL statement; whether it died."""
    pid = os.fork()
    if pid == 0:
        count = 0
        connect = schema._connect

        def trace(sql):
            nonlocal count
            count += 1
            if count == statement:
                os.kill(os.getpid(), signal.SIGKILL)

        def traced(*args):
            conn = connect(*args)
            conn.set_trace_callback(trace)
            return conn

        try:
            schema._connect = traced
            with SQLiteStore(path, journal=journal) as store:
                store.open("s", on_failure=ignore)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


@pytest.mark.once
@pytest.mark.concurrent
@pytest.mark.parametrize("journal", ["wal", "delete"])
def test_a_kill_before_any_statement_of_a_repair_leaves_all_of_it_or_nothing(tmp_path, journal):
    before = seed_cold_session(tmp_path / "seed.db", journal)
    after = before + closers(check(before))
    untouched = repaired = statement = 0
    while True:
        statement += 1
        folder = tmp_path / str(statement)
        folder.mkdir()
        path = folder / "a.db"
        path.write_bytes((tmp_path / "seed.db").read_bytes())
        killed = open_and_die(path, journal, statement)
        events = lines(SQLiteStore(path).read("s"))
        assert events in (lines(before), lines(after)), statement
        untouched += events == lines(before)
        repaired += events == lines(after)
        with SQLiteStore(path, journal=journal) as store:
            opened = store.open("s", on_failure=ignore)
            assert lines(before + opened.closers) == lines(after) or opened.closers == []
            assert lines(store.read("s")) == lines(after)
        assert integrity(path) == "ok"
        if not killed:
            break
    assert statement > 20 and untouched > 10 and repaired >= 2, (statement, untouched, repaired)


@pytest.mark.concurrent
@pytest.mark.parametrize("point", ["store.commit.before", "store.commit.after"])
def test_a_kill_around_a_commit_writes_the_batch_whole_or_not_at_all(tmp_path, point):
    code = (
        "import store_child, sys\n"
        "from store_child import *\n"
        "from syncagent.testing.points import FailPoints\n"
        "points = FailPoints()\n"
        f"store = SQLiteStore({str(tmp_path / 'a.db')!r}, points=points)\n"
        "opened = store.create('s', on_failure=ignore)\n"
        f"points.kill({point!r})\n"
        "store.append(opened.lease, Log().whole().events)\n"
        "store.flush()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), store_child.HERE])}
    child = subprocess.run([sys.executable, "-c", code], env=environment)
    assert child.returncode == -signal.SIGKILL
    found = len(list(SQLiteStore(tmp_path / "a.db").read("s")))
    assert found == (0 if point == "store.commit.before" else 9)


def test_a_batch_that_a_constraint_refuses_leaves_nothing(tmp_path):
    """Whatever library stands around the connection: the batch is one transaction."""
    with SQLiteStore(tmp_path / "a.db") as store:
        opened = store.create("s", on_failure=ignore)
        conn = sqlite3.connect(store.path)
        conn.execute("INSERT INTO events VALUES (1, 3, 1, 'odd', 1, NULL, '{}')")
        conn.commit()
        conn.close()
        put_all(store, opened, Log().put("m-1").put("m-2").put("m-3").events, flush=False)
        with pytest.raises(Exception):
            store.flush()
            store.flush(opened.lease)
        conn = sqlite3.connect(store.path)
        assert conn.execute("SELECT seq FROM events").fetchall() == [(3,)]
        assert conn.execute("SELECT next_seq FROM sessions").fetchone() == (1,)
        conn.close()


# -- competitors ----------------------------------------------------------------------------------------


@pytest.mark.concurrent
def test_of_two_processes_that_open_a_cold_session_one_wins(tmp_path):
    """Fifty times at the same moment; the other learns who."""
    path = tmp_path / "a.db"
    log = Log().asking().chunk("Hel")
    with SQLiteStore(path) as store:
        put_all(store, store.create("s", on_failure=ignore), log.events)
    racers = [store_child.start("race", path, "s") for _ in range(2)]
    for racer in racers:
        assert racer.stdout.readline() == "ready\n"
    closed = 0
    for round in range(50):
        for racer in racers:
            racer.stdin.write("go\n")
            racer.stdin.flush()
        answers = [racer.stdout.readline().split() for racer in racers]
        assert sorted(answer[0] for answer in answers) == ["live", "won"], (round, answers)
        winner = 0 if answers[0][0] == "won" else 1
        assert int(answers[1 - winner][1]) == racers[winner].pid
        closed += int(answers[winner][1])
        for racer in racers:
            racer.stdin.write("let go\n")
            racer.stdin.flush()
        assert [racer.stdout.readline() for racer in racers] == ["let go\n"] * 2
    assert [store_child.finish(racer) for racer in racers] == [0, 0]
    events = list(SQLiteStore(path).read("s"))
    assert closed == 3 and len(events) == len(log.events) + 3 and check(events).phase == "idle"


@pytest.mark.once
@pytest.mark.concurrent
def test_sessions_of_several_processes_do_not_disturb_each_other(tmp_path):
    path = tmp_path / "a.db"
    reader = store_child.start("read", path)
    writers = [store_child.start("interleave", path, f"s{n}", 60) for n in range(4)]
    assert [child.stdout.read() for child in writers] == ["errors 0\n"] * 4
    assert [store_child.finish(child) for child in writers] == [0] * 4
    reader.stdin.write("\n")
    reader.stdin.flush()
    words = reader.stdout.read().split()
    assert words[:2] == ["errors", "0"] and store_child.finish(reader) == 0
    store = SQLiteStore(path)
    assert {info.id: info.live for info in store.sessions()} == {f"s{n}": False for n in range(4)}
    for n in range(4):
        assert check(list(store.read(f"s{n}"))).seq == 60
    assert integrity(path) == "ok"


@pytest.mark.concurrent
def test_a_session_that_another_process_drives_is_viewed_and_never_repaired(tmp_path):
    path = tmp_path / "a.db"
    child = store_child.start("hold", path, "s1")
    assert child.stdout.readline() == f"held {child.pid}\n"
    with SQLiteStore(path) as store:
        seen = store.inspect("s1")
        assert seen.live and seen.closers == [] and seen.events[-1].type == "assistant/chunk"
        with pytest.raises(SessionLive) as caught:
            store.open("s1", on_failure=ignore)
        info = store.sessions()[0]
        assert (caught.value.pid, caught.value.since) == (child.pid, info.since) == (info.pid, info.since)
        assert caught.value.host == info.host and str(child.pid) in str(caught.value)
        assert list(store.read("s1")) == seen.events
        assert store_child.finish(child) == 0
        assert len(store.open("s1", on_failure=ignore).closers) == 3


@pytest.mark.concurrent
def test_a_killed_processes_session_is_free_at_once(tmp_path):
    path = tmp_path / "a.db"
    child = store_child.start("hold", path, "s1")
    assert child.stdout.readline().startswith("held")
    with SQLiteStore(path) as store:
        with pytest.raises(SessionLive):
            store.open("s1", on_failure=ignore)
        store_child.kill(child)
        assert len(store.open("s1", on_failure=ignore).closers) == 3
        conn = sqlite3.connect(path)
        runners = conn.execute("SELECT count(*) FROM runners").fetchone()
        conn.close()
        assert runners == (2,), "what the dead left is removed by the next store"
    with SQLiteStore(path) as store:
        store.create("s2", on_failure=ignore)
        assert len(os.listdir(str(path) + "-runners")) == 2


# -- forks ----------------------------------------------------------------------------------------------


@pytest.mark.concurrent
def test_a_forked_child_is_refused_and_harms_nobody(tmp_path):
    path = tmp_path / "a.db"
    store = SQLiteStore(path)
    opened = store.create("s", on_failure=ignore)
    events = Log().whole().events
    put_all(store, opened, events[:4])
    half_read = store.read("s")
    next(half_read)

    def use():
        for attempt in (
            lambda: store.append(opened.lease, events[4:5]),
            lambda: store.flush(opened.lease),
            lambda: store.create("t", on_failure=ignore),
            lambda: store.open("s", on_failure=ignore),
            lambda: list(store.read("s")),
            lambda: store.inspect("s"),
            store.sessions,
            store.retry,
            lambda: store.durable_seq(opened.lease),
            lambda: store.release(opened.lease),
            lambda: list(half_read),
        ):
            try:
                attempt()
            except ForkedStore:
                continue
            return False
        store.close()
        with SQLiteStore(path) as own:
            own.create(f"child-{os.getpid()}", on_failure=ignore)
            assert len(list(own.read("s"))) >= 4
            try:
                own.open("s", on_failure=ignore)
            except SessionLive as exc:
                return exc.pid == os.getppid()
        return False

    for round in range(20):
        assert in_child(use if round % 2 else lambda: True) == 0
    put_all(store, opened, events[4:])
    assert list(store.read("s")) == events and len(list(half_read)) == 3
    store.close()
    assert integrity(path) == "ok"


@pytest.mark.concurrent
@pytest.mark.once
def test_a_child_that_leaves_by_the_front_door_does_not_hang(tmp_path):
    """Its interpreter ends in the usual way, with the parent's writer in the middle of commits."""
    start = "import store_child; store_child.main()"
    child = subprocess.run(
        [sys.executable, "-c", start, "fork_often", str(tmp_path / "a.db")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), store_child.HERE])},
        stdout=subprocess.PIPE,
        text=True,
        timeout=100,
    )
    assert child.returncode == 0 and child.stdout == "children 10\n"
    events = list(SQLiteStore(tmp_path / "a.db").read("s"))
    assert check(events).seq == len(events) > 0
    assert integrity(tmp_path / "a.db") == "ok"


# -- other journals, other names ------------------------------------------------------------------------


def test_without_a_write_ahead_log_the_promises_are_the_same(tmp_path):
    events = random_log(random.Random(3), turns=4)
    path = tmp_path / "a.db"
    with SQLiteStore(path, journal="delete") as store:
        opened = store.create("s", on_failure=ignore)
        put_all(store, opened, events)
        assert not os.path.exists(str(path) + "-wal")
        assert lines(store.read("s")) == lines(events)
    with SQLiteStore(path, journal="delete") as store:
        assert store.open("s", on_failure=ignore).state == check(events)


def test_a_link_leads_to_the_same_sessions(tmp_path):
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real" / "a.db", tmp_path / "b.db")
    with SQLiteStore(tmp_path / "b.db") as first, SQLiteStore(tmp_path / "real" / "a.db") as second:
        first.create("s", on_failure=ignore)
        with pytest.raises(SessionLive):
            second.open("s", on_failure=ignore)


# -- time -----------------------------------------------------------------------------------------------


def long_session(store, turns):
    """A session of `turns` whole turns with a thousand chunks each, written in large batches."""
    opened = store.create(f"t{turns}", on_failure=ignore)
    log = Log()
    for number in range(turns):
        log.asking(f"u-{number}")
        for _ in range(990):
            log.chunk("token ")
        log.says("done").end_step().end_turn()
    put_all(store, opened, log.events)
    store.release(opened.lease)
    return len(log.dicts)


@pytest.mark.once
def test_opening_costs_the_tail_and_not_the_log(tmp_path):
    seconds = {}
    with SQLiteStore(tmp_path / "a.db") as store:
        for turns in (1, 30):
            long_session(store, turns)
            times = []
            for _ in range(5):
                begun = time.perf_counter()
                opened = store.open(f"t{turns}", on_failure=ignore)
                times.append(time.perf_counter() - begun)
                store.release(opened.lease)
            seconds[turns] = min(times)
    assert seconds[30] < seconds[1] * 5 + 0.05, seconds


def test_opening_reads_only_what_came_after_the_last_balanced_point(tmp_path, monkeypatch):
    log = Log()
    for number in range(20):
        log.whole(f"u-{number}")
    log.put("tail")
    with SQLiteStore(tmp_path / "a.db") as store:
        opened = store.create("s", on_failure=ignore)
        put_all(store, opened, log.events)
        store.release(opened.lease)
        from syncagent.boundary.store import scan

        read = []
        real = scan.unpack
        monkeypatch.setattr(scan, "unpack", lambda *row: read.append(row) or real(*row))
        assert store.open("s", on_failure=ignore).state.seq == len(log.dicts)
        assert len(read) <= 1


def test_the_parts_have_the_names_that_the_docs_give_them():
    assert sqlite.SQLiteStore.__doc__ and backlog.WINDOW == 0.05
    assert LogState().phase == "idle"
