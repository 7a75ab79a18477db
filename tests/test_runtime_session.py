"""A live session: what append, flush, follow, load and close promise."""

import threading

import pytest
from runtime_parts import LONG, SOON, Background, until

from syncagent.cancel import CancellationToken, Cancelled
from syncagent.errors import (
    AgentClosed,
    InvalidLog,
    LeaseLost,
    SessionOpenTurn,
    StoreBusy,
    StoreFailed,
    StoreFull,
)
from syncagent.log import derive_messages
from syncagent.log import events as ev
from syncagent.runtime import session as module

pytestmark = pytest.mark.concurrent


def note(text="user"):
    """An event that may stand anywhere."""
    return ev.CancelRequested(cause=text)


def put(id, text="hi", target="next_turn"):
    message = ev.Message(id=id, role="user", content=[{"type": "text", "text": text}])
    return ev.InboxPut(target=target, message=message, wake=True)


def turn(number, id, answer="ok"):
    """The bodies of a whole small turn, after a put of `id`."""
    message = ev.Message(id=id, role="user", content=[{"type": "text", "text": f"ask {id}"}])
    said = ev.Message(id=f"a-{number}-1-1", role="assistant", content=[{"type": "text", "text": answer}])
    return [
        put(id, f"ask {id}"),
        ev.TurnStart(turn=number),
        ev.InboxTaken(ids=[id], outcome="claimed"),
        ev.StepStart(turn=number, step=1),
        ev.UserMessage(turn=number, step=1, message=message),
        ev.AssistantMessage(turn=number, step=1, attempt=1, message=said, usage={}),
        ev.StepEnd(turn=number, step=1),
        ev.TurnEnd(turn=number, reason={"kind": "completed"}),
    ]


# -- append --------------------------------------------------------------------------------------------


def test_append_stamps_events_one_after_the_other(home):
    with home.store.create("s") as session:
        first = session.append(put("m-1"), note())
        second = session.append(note())
        assert [event.seq for event in first + second] == [1, 2, 3] and session.seq == 3
        session.flush()
        assert list(home.store.read("s")) == first + second


def test_the_time_of_the_log_never_goes_back(home, monkeypatch):
    clock = iter([5000, 4000, 6000, 1])
    monkeypatch.setattr(module, "_now_ms", lambda: next(clock))
    with home.store.create("s") as session:
        events = session.append(note(), note(), note(), note())
        assert [event.time for event in events] == [5000, 5000, 6000, 6000]


def test_what_breaks_a_rule_is_not_in_the_log_and_what_stands_before_it_is(home):
    with home.store.create("s") as session:
        with pytest.raises(InvalidLog) as caught:
            session.append(note(), ev.TurnStart(turn=7), note())
        assert (caught.value.rule, caught.value.seq) == ("L3", 2)
        session.append(note())
        session.flush()
        assert [event.type for event in home.store.read("s")] == ["cancel/requested"] * 2


def test_what_is_no_json_is_not_in_the_log(home):
    with home.store.create("s") as session:
        with pytest.raises(InvalidLog):
            session.append(ev.CancelRequested(cause="x", extra={"y": {1, 2}}))
        with pytest.raises(InvalidLog):
            session.append(ev.CancelRequested(cause="\ud800"))
        session.append(note())
        session.flush()
        assert len(list(home.store.read("s"))) == 1


def test_a_type_that_this_build_does_not_know_stands_only_if_it_may_be_ignored(home):
    with home.store.create("s") as session:
        with pytest.raises(InvalidLog):
            session.append(ev.Unknown(name="other/thing"))
        session.append(ev.Unknown(name="other/thing", extra={"ignorable": True, "x": 1}))
    with home.store.open("s") as session:
        session.append(*turn(1, "m-1"))
    assert home.store.load("s")[0].type == "other/thing"


def test_many_threads_append_without_a_gap(home):
    session = home.store.create("s")
    threads = [Background(lambda: [session.append(note()) for _ in range(100)]) for _ in range(8)]
    for thread in threads:
        thread.result()
    session.close()
    assert [event.seq for event in home.store.read("s")] == list(range(1, 801))


def test_end_turn_appends_what_the_open_turn_needs(home):
    with home.store.create("s") as session:
        session.append(*turn(1, "m-1")[:5])
        session.append(ev.AssistantChunk(turn=1, step=1, attempt=1, chunk={"kind": "text", "text": "Hel"}))
        ended = session.end_turn({"kind": "aborted"})
        assert [event.type for event in ended] == ["assistant/message", "step/end", "turn/end"]
        assert session.end_turn({"kind": "aborted"}) == []


def test_the_transcript_in_memory_is_that_of_the_log(home):
    with home.store.create("s") as session:
        session.append(*turn(1, "m-1"), *turn(2, "m-2")[:6])
        session.flush()
        assert session.messages() == derive_messages(home.store.read("s"))
        session.end_turn({"kind": "aborted"})
        session.append(*turn(3, "m-3"))
        before = session.messages()
    with home.store.open("s") as session:
        assert session.messages() == before == derive_messages(home.store.read("s"))
        assert session.pending() == {"next_step": [], "next_turn": []}


# -- flush ---------------------------------------------------------------------------------------------


def test_flush_returns_when_all_is_durable(home):
    with home.store.create("s") as session:
        commit = home.points.hold("store.commit.before")
        session.append(note())
        flushing = Background(session.flush)
        assert commit.reached.wait(LONG)
        flushing.thread.join(SOON)
        assert not flushing.done
        assert list(home.store.read("s")) == []
        commit.release()
        flushing.result()
        assert len(list(home.store.read("s"))) == 1


def test_what_is_durable_is_not_kept_in_memory(home):
    with home.store.create("s") as session:
        commit = home.points.hold("store.commit.before")
        session.append(*[note() for _ in range(50)])
        assert len(session._recent) == 50
        commit.release()
        session.flush()
        assert len(session._recent) == 0


def test_what_the_writer_has_made_durable_by_itself_is_not_kept_either(home):
    """A long stream flushes nothing, and must not pile up in memory."""
    with home.store.create("s") as session:
        session.append(*[note() for _ in range(50)])
        until(lambda: len(list(home.store.read("s"))) == 50, "the writer")
        until(lambda: session.append(note()) and len(session._recent) < 50, "the forgetting")


class Owner:
    """Somebody who runs no turn, and is told of failures."""

    def __init__(self, store_failed):
        self.store_failed = store_failed

    def check_outside(self):
        """It never is inside."""

    def dispose(self):
        """There is nothing to cancel."""

    def wait(self, timeout, *, through):
        """There is nothing to wait for."""


@pytest.mark.parametrize("error", [StoreFull, StoreBusy])
def test_events_of_a_full_or_busy_store_are_kept_and_tried_again(home, error):
    with home.store.create("s") as session:
        told = []
        session.owner = Owner(told.append)
        home.points.fail("store.commit.before", error("no", path=home.path), times=2)
        events = session.append(note("user"), note("hook"))
        with pytest.raises(error):
            session.flush()
        events += session.append(note("parent"))
        with pytest.raises(error):
            session.flush()  # it is not tried again by itself
        with pytest.raises(error):
            session.retry_flush()
        assert list(session.events()) == events
        session.retry_flush()
        assert list(home.store.read("s")) == events
        assert {type(one) for one in told} == {error}


def test_a_failed_store_takes_nothing_more(home):
    home.broken = True
    session = home.store.create("s")
    session.append(note())
    session.flush()
    told = threading.Event()
    session.owner = Owner(lambda error: told.set())
    home.points.fail("store.commit.before", StoreFailed("gone", path=home.path))
    session.append(note())
    with pytest.raises(StoreFailed):
        session.flush()
    assert told.wait(LONG)
    for refuse in (lambda: session.append(note()), session.flush, session.retry_flush):
        with pytest.raises(StoreFailed):
            refuse()
    assert session.over
    session.close()
    assert len(list(home.store.read("s"))) == 1


def test_an_append_that_is_cut_in_the_middle_lets_nothing_follow(home):
    home.broken = True
    session = home.store.create("s")
    session.append(note("first"))
    home.points.fail("store.append", KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        session.append(note("cut"))
    with pytest.raises(StoreFailed, match="was cut"):
        session.append(note("next"))
    session.close()
    with home.store.open("s") as again:
        assert [event.data["cause"] for event in again.events()] in (["first"], [])
        again.append(note("after"))


# -- looking -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [0, 5, 10])
def test_events_are_those_of_the_file_and_those_of_memory_without_a_seam(home, durable):
    with home.store.create("s") as session:
        events = session.append(*[note() for _ in range(durable)])
        session.flush()
        with home.points:
            home.points.hold("store.commit.before")
            events += session.append(*[put(f"m-{number}") for number in range(10 - durable)])
            for since in range(12):
                assert list(session.events(since=since)) == events[since:]
                wanted = [event for event in events[since:] if event.type == "inbox/put"]
                assert list(session.events(since=since, types=["inbox/put"])) == wanted


def test_follow_is_live(home):
    session = home.store.create("s")
    seen = []
    passed = threading.Semaphore(0)

    def follow():
        for event in session.follow():
            seen.append(event.seq)
            passed.release()

    following = Background(follow)
    for number in range(1, 4):
        session.append(note())
        assert passed.acquire(timeout=LONG)
        assert seen == list(range(1, number + 1))
    assert not following.done
    session.close()
    following.result()


def test_many_followers_get_every_event_once_while_many_write(home):
    session = home.store.create("s")
    followers = [Background(list, session.follow(since=since)) for since in (0, 0, 100)]

    def write():
        for number in range(100):
            session.append(note())
            if number % 10 == 0:
                session.flush()

    for thread in [Background(write) for _ in range(3)]:
        thread.result()
    session.close()
    whole = list(home.store.read("s"))
    assert [follower.result() for follower in followers] == [whole, whole, whole[100:]]


def test_a_follower_that_starts_late_reads_what_is_stored(home):
    with home.store.create("s") as session:
        events = session.append(*[note() for _ in range(20)])
        session.flush()
        events += session.append(note())
    assert list(session.follow()) == events
    assert list(session.follow(since=20)) == events[20:]
    assert list(session.follow(since=99)) == []


def test_a_follower_hears_of_the_stores_failure(home):
    home.broken = True
    session = home.store.create("s")
    following = Background(list, session.follow())
    until(lambda: session._guard._condition._waiters, "the follower")
    session.fail(LeaseLost("gone", path=home.path, session="s"))
    with pytest.raises(LeaseLost):
        following.result()
    session.close()


def test_a_follower_hears_of_an_append_that_failed(home):
    """The state is one event ahead then, of an event that nobody will ever read."""
    home.broken = True
    session = home.store.create("s")
    (first,) = session.append(note())
    following = session.follow()
    assert next(following) == first
    home.points.fail("store.append", StoreFailed("gone", path=home.path))
    with pytest.raises(StoreFailed):
        session.append(note())
    with pytest.raises(StoreFailed):
        next(following)
    session.close()
    assert list(session.follow(since=1)) == []


def test_a_token_ends_a_follower_that_waits_and_no_other(home):
    with home.store.create("s") as session, CancellationToken() as token:
        session.append(note())
        both = [Background(list, session.follow(token=token)), Background(list, session.follow())]
        until(lambda: len(session._guard._condition._waiters) == 2, "the followers")
        token.cancel()
        with pytest.raises(Cancelled):
            both[0].result()
        session.append(note())
        with pytest.raises(Cancelled):
            next(session.follow(token=token))
    assert [event.seq for event in both[1].result()] == [1, 2]


# -- load ----------------------------------------------------------------------------------------------


def test_load_of_a_live_session_in_a_turn_refuses_and_adds_nothing(home):
    with home.store.create("s") as session:
        session.append(*turn(1, "m-1"), *turn(2, "m-2")[:4])
        before = list(session.events())
        for load in (session.load, lambda: home.store.load("s")):
            with pytest.raises(SessionOpenTurn) as caught:
                load()
            assert caught.value.turn == 2
        assert list(session.events()) == before
        session.end_turn({"kind": "aborted"})
        assert len(home.store.load("s")) == len(before) + 2


def test_load_between_turns_answers_when_all_is_durable(home):
    with home.store.create("s") as session:
        commit = home.points.hold("store.commit.before")
        events = session.append(*turn(1, "m-1"))
        loading = Background(home.store.load, "s")
        assert commit.reached.wait(LONG)
        loading.thread.join(SOON)
        assert not loading.done
        commit.release()
        assert loading.result() == events
        assert list(home.store.read("s")) == events


def test_load_gives_a_balanced_log_even_if_the_next_turn_begins_meanwhile(home):
    with home.store.create("s") as session:
        flush = home.points.hold("store.flush")
        events = session.append(*turn(1, "m-1"))
        loading = Background(home.store.load, "s")
        assert flush.reached.wait(LONG)
        session.append(*turn(2, "m-2")[:4])
        flush.release()
        assert loading.result() == events
        session.end_turn({"kind": "aborted"})


# -- close ---------------------------------------------------------------------------------------------


def test_close_makes_all_durable_gives_the_lease_back_and_may_be_repeated(home):
    session = home.store.create("s")
    events = session.append(note(), note())
    session.close()
    session.close()
    assert list(home.store.read("s")) == events
    with pytest.raises(AgentClosed):
        session.append(note())
    with pytest.raises(AgentClosed):
        session.end_turn({"kind": "aborted"})
    assert list(session.events()) == events
    with home.store.open("s") as again:
        assert again.seq == 2


def test_close_writes_what_a_full_disk_has_kept_and_says_so_if_it_cannot(home):
    session = home.store.create("s")
    home.points.fail("store.commit.before", StoreFull("no", path=home.path))
    session.append(note())
    with pytest.raises(StoreFull):
        session.flush()
    session.close()
    assert len(list(home.store.read("s"))) == 1
    session = home.store.open("s")
    home.points.fail("store.commit.before", StoreFull("no", path=home.path), times=None)
    session.append(note())
    with pytest.raises(StoreFull):
        session.close()
    home.points.clear()
    with home.store.open("s") as again:  # the lease was given back all the same
        assert again.seq == 1
