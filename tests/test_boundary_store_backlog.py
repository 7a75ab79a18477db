"""The queue before the writer: order, windows, and who is told what. No thread writes here."""

import threading
import time

import pytest
from logs import Log

from syncagent.boundary.store import backlog as module
from syncagent.boundary.store.backlog import Backlog
from syncagent.boundary.store.faults import make_fault
from syncagent.boundary.store.jobs import Job
from syncagent.boundary.store.protocol import Lease
from syncagent.boundary.store.tables import Progress, Taken
from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import LeaseLost, StoreCorrupt, StoreFailed, StoreFull
from syncagent.log import LogState

FULL = make_fault(StoreFull, "full", path="p")
FAILED = make_fault(StoreFailed, "failed", path="p")
LOST = make_fault(StoreFailed, "lost", path="p")
EVENTS = Log().put("m-1").put("m-2").put("m-3").put("m-4").events


class Sessions:
    """A backlog with a session for each letter that is asked for."""

    def __init__(self):
        self.backlog = Backlog("p")
        self.leases = {}
        self.failures = []

    def lease(self, name):
        if name not in self.leases:
            lease = Lease(session=name, sid=ord(name), epoch=1)
            taken = Taken(lease=lease, state=LogState(), closers=[], progress=Progress())
            self.backlog.hold(taken, lambda error, name=name: self.failures.append((name, error)))
            self.leases[name] = lease
        return self.leases[name]

    def append(self, name, *events, state=None, size=10):
        self.backlog.append(self.lease(name), [(event, size) for event in events], state)

    def take(self):
        """What the writer gets, as (session, seq)."""
        entries = self.backlog.next_work()
        return entries, [(entry.held.lease.session, entry.event.seq) for entry in entries]

    def settle(self, entries):
        sessions = {}
        for entry in entries:
            sessions.setdefault(entry.held, []).append(entry.event)
        progress = {held: held.progress.after(events) for held, events in sessions.items()}
        self.backlog.settle(entries, progress)
        self.backlog.put_back()


@pytest.fixture
def sessions():
    return Sessions()


@pytest.fixture
def now(monkeypatch):
    """Without a window whatever is queued is due."""
    monkeypatch.setattr(module, "WINDOW", 0.0)


def test_events_come_out_in_the_order_in_which_they_went_in(sessions, now):
    sessions.append("a", EVENTS[0])
    sessions.append("b", EVENTS[0], EVENTS[1])
    sessions.append("a", EVENTS[1])
    entries, names = sessions.take()
    assert names == [("a", 1), ("b", 1), ("b", 2), ("a", 2)]
    sessions.settle(entries)
    assert sessions.backlog.durable_seq(sessions.lease("a")) == 2


def test_a_gap_is_a_bug_of_ours(sessions):
    with pytest.raises(AssertionError):
        sessions.append("a", EVENTS[1])


def test_the_state_stands_with_the_last_event(sessions, now):
    sessions.append("a", *EVENTS, state={"seq": 4})
    entries, _ = sessions.take()
    assert [entry.state for entry in entries] == [None, None, None, {"seq": 4}]


def test_a_batch_has_bounds(sessions, monkeypatch):
    monkeypatch.setattr(module, "MAX_EVENTS", 3)
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    sessions.append("a", *EVENTS)
    entries, names = sessions.take()
    assert len(names) == 3
    sessions.settle(entries)
    sessions.append("b", *EVENTS, size=60)
    entries, names = sessions.take()
    assert names == [("a", 4), ("b", 1)], "the rest of the bytes is the next batch"
    sessions.settle(entries)
    sessions.backlog.retry()
    sizes = []
    while len(sizes) < 3:
        entries, names = sessions.take()
        sizes.append(len(names))
        sessions.settle(entries)
    assert sizes == [1, 1, 1], "one event goes alone, whatever its size"


@pytest.mark.concurrent
def test_the_window_begins_with_the_first_event_and_later_ones_do_not_extend_it(sessions, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 0.2)
    begun = time.monotonic()
    stop = threading.Event()

    def feed():
        sessions.append("b", EVENTS[0])
        for event in EVENTS:
            sessions.append("a", event)
            stop.wait(0.03)

    feeder = threading.Thread(target=feed)
    feeder.start()
    _, names = sessions.take()
    assert 0.15 < time.monotonic() - begun < 20
    stop.set()
    feeder.join()
    assert names[0] == ("b", 1) and len(names) > 1


@pytest.mark.concurrent
def test_who_flushes_ends_the_window_and_is_told_when_all_is_written(sessions, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 600.0)
    sessions.append("a", *EVENTS[:2])
    answers = []
    lease = sessions.lease("a")
    waiter = threading.Thread(target=lambda: answers.append(sessions.backlog.flush(lease, None)))
    waiter.start()
    entries, names = sessions.take()
    assert names == [("a", 1), ("a", 2)] and answers == []
    sessions.settle(entries)
    waiter.join(60)
    assert answers == [True]
    assert sessions.backlog.flush(sessions.lease("a"), None) is False, "nothing is left to wait for"
    assert sessions.backlog.flush(None, None) is False


@pytest.mark.concurrent
def test_a_cancel_ends_a_flush_and_the_events_stay(sessions, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 600.0)
    sessions.append("a", EVENTS[0])
    with CancellationToken() as token:
        timer = threading.Timer(0.05, token.cancel)
        timer.start()
        with pytest.raises(Cancelled):
            sessions.backlog.flush(sessions.lease("a"), token)
        timer.join()
    assert sessions.take()[1] == [("a", 1)]


def test_a_full_disk_keeps_the_events_in_order_until_the_retry(sessions, now):
    sessions.append("a", EVENTS[0])
    sessions.lease("c")
    entries, _ = sessions.take()
    told = sessions.backlog.pause(FULL)
    sessions.backlog.put_back()
    assert len(told) == 1, "only sessions with events that wait are told"
    sessions.append("a", EVENTS[1])
    for lease in (sessions.lease("a"), None):
        with pytest.raises(StoreFull):
            sessions.backlog.flush(lease, None)
    assert sessions.backlog.flush(sessions.lease("c"), None) is False
    assert sessions.backlog.is_paused()
    sessions.backlog.retry()
    assert sessions.take()[1] == [("a", 1), ("a", 2)]


def test_a_lost_session_loses_its_events_and_no_others(sessions, now):
    sessions.append("a", EVENTS[0])
    sessions.append("b", EVENTS[0])
    entries, _ = sessions.take()
    sessions.append("a", EVENTS[1])
    held = entries[0].held
    assert len(sessions.backlog.lose(held, LOST)) == 1
    assert sessions.backlog.lose(held, LOST) == [], "it is told once"
    sessions.backlog.put_back()
    for use in (
        lambda: sessions.append("a", EVENTS[2]),
        lambda: sessions.backlog.flush(sessions.lease("a"), None),
    ):
        with pytest.raises(StoreFailed, match="lost"):
            use()
    assert sessions.take()[1] == [("b", 1)]
    assert not sessions.backlog.is_held(ord("a")) and sessions.backlog.is_held(ord("b"))


def test_what_is_given_back_drops_what_it_has_queued(sessions, now):
    sessions.append("a", EVENTS[0])
    sessions.append("b", EVENTS[0])
    sessions.append("a", EVENTS[1])
    a = sessions.lease("a")
    assert sessions.backlog.let_go(a) and not sessions.backlog.let_go(a)
    entries, names = sessions.take()
    assert names == [("b", 1)]
    with pytest.raises(LeaseLost, match="given back"):
        sessions.backlog.append(a, [(EVENTS[2], 10)], None)
    with pytest.raises(LeaseLost):
        sessions.backlog.flush(a, None)
    assert sessions.backlog.durable_seq(a) == 0
    sessions.settle(entries)
    assert sessions.backlog.flush(None, None) is False


def test_what_the_writer_has_in_hand_is_dropped_when_it_comes_back(sessions, now):
    sessions.append("a", EVENTS[0])
    sessions.append("b", EVENTS[0])
    sessions.take()
    sessions.backlog.let_go(sessions.lease("a"))
    sessions.backlog.put_back()
    assert sessions.take()[1] == [("b", 1)]


def test_a_part_of_a_batch_can_be_settled(sessions, now):
    sessions.append("a", EVENTS[0])
    sessions.append("b", EVENTS[0])
    sessions.append("a", EVENTS[1])
    entries, _ = sessions.take()
    sessions.backlog.settle([entries[1]], {entries[1].held: Progress(next_seq=2)})
    sessions.backlog.put_back()
    assert sessions.take()[1] == [("a", 1), ("a", 2)]


def test_a_dead_store_refuses_everything(sessions, now):
    sessions.append("a", EVENTS[0])
    job = Job(work=lambda desk, patience: None)
    sessions.backlog._jobs.append(job)
    assert len(sessions.backlog.die(FAILED)) == 1
    assert job.done and isinstance(job.error, StoreFailed)
    for use in (
        lambda: sessions.append("a", EVENTS[1]),
        lambda: sessions.backlog.flush(sessions.lease("a"), None),
        lambda: sessions.backlog.flush(None, None),
        lambda: sessions.backlog.submit(Job(work=lambda desk, patience: None)),
        sessions.backlog.raise_if_over,
    ):
        with pytest.raises(StoreFailed, match="failed"):
            use()
    assert sessions.backlog.next_work() is None
    assert sessions.backlog.left_over() is FAILED


def test_a_session_that_is_opened_again_by_force_is_told(sessions):
    sessions.lease("a")
    lease = Lease(session="a", sid=ord("a"), epoch=2)
    taken = Taken(lease=lease, state=LogState(), closers=[], progress=Progress())
    assert [held.lease.epoch for held in sessions.backlog.hold(taken, print)] == [1]


def test_closing_takes_nothing_more_and_tries_what_is_queued_once(sessions, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 600.0)
    sessions.append("a", EVENTS[0])
    sessions.backlog.pause(FULL)
    sessions.backlog.close()
    with pytest.raises(StoreFailed, match="closed"):
        sessions.append("a", EVENTS[1])
    with pytest.raises(StoreFailed, match="closed"):
        sessions.backlog.submit(Job(work=lambda desk, patience: None))
    assert sessions.take()[1] == [("a", 1)]
    sessions.backlog.pause(FULL)
    sessions.backlog.put_back()
    assert sessions.backlog.next_work() is None
    assert sessions.backlog.left_over() is FULL


def test_a_job_goes_before_events_and_its_result_comes_back(sessions, now):
    sessions.append("a", EVENTS[0])
    results = []
    job = Job(work=lambda desk, patience: None)
    waiter = threading.Thread(target=lambda: results.append(sessions.backlog.submit(job)))
    waiter.start()
    while not isinstance(sessions.backlog.next_work(), Job):
        sessions.backlog.put_back()
    sessions.backlog.finish(job, result="done")
    waiter.join(60)
    assert results == ["done"]


def test_a_job_that_is_cancelled_before_it_begins_is_never_done(sessions):
    with CancellationToken() as token:
        token.cancel()
        with pytest.raises(Cancelled):
            sessions.backlog.submit(Job(work=lambda desk, patience: None, token=token))
    assert not sessions.backlog._jobs


def test_a_job_that_has_begun_is_waited_for_and_what_it_did_stands(sessions):
    results = []
    with CancellationToken() as token:
        job = Job(work=lambda desk, patience: None, token=token)
        waiter = threading.Thread(target=lambda: results.append(sessions.backlog.submit(job)))
        waiter.start()
        assert sessions.backlog.next_work() is job
        token.cancel()
        sessions.backlog.finish(job, result="done")
        waiter.join(60)
    assert results == ["done"]


def test_an_interrupt_takes_a_waiting_job_back(sessions, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "wait_for_box", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sessions.backlog.submit(Job(work=lambda desk, patience: None))
    assert not sessions.backlog._jobs


def test_each_waiter_gets_an_error_of_its_own(sessions, monkeypatch):
    monkeypatch.setattr(module, "WINDOW", 600.0)
    sessions.append("a", EVENTS[0])
    errors = []

    def wait():
        try:
            sessions.backlog.flush(sessions.lease("a"), None)
        except StoreFull as exc:
            errors.append(exc)

    waiters = [threading.Thread(target=wait) for _ in range(4)]
    for waiter in waiters:
        waiter.start()
    while len(sessions.backlog._waiters) < 4:
        time.sleep(0.001)  # nobody announces it
    sessions.backlog.pause(FULL)
    for waiter in waiters:
        waiter.join(60)
    assert len({id(error) for error in errors}) == 4


def test_a_session_that_failed_alone_is_told_its_own_error(sessions):
    sessions.append("a", EVENTS[0])
    fault = make_fault(StoreCorrupt, "damaged", path="p")
    held = sessions.backlog._held[(ord("a"), 1)]
    sessions.backlog.lose(held, fault)
    with pytest.raises(StoreCorrupt):
        sessions.backlog.flush(sessions.lease("a"), None)
