"""The cancellation token: a one-way switch with a cause, in a tree, that wakes what blocks."""

import contextlib
import logging
import multiprocessing
import os
import random
import select
import sys
import threading
import time

import pytest
from test_boundary_store_forks import in_child

from syncagent.cancel import CancellationToken, Cancelled, Cause

PATIENCE = 10.0  # seconds that anything may take on a loaded machine before the test fails

concurrent = pytest.mark.concurrent


def in_thread(fn, *args):
    """Start `fn` in a thread and return a function that joins it and gives what it returned or raised."""
    outcome = []

    def body():
        try:
            outcome.append((fn(*args), None))
        except BaseException as exc:
            outcome.append((None, exc))

    thread = threading.Thread(target=body, name=f"test-{fn.__name__}")
    thread.start()

    def join():
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"{thread.name} still runs"
        value, exc = outcome[0]
        if exc is not None:
            raise exc
        return value

    return join


def eventually(condition):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.001)  # nobody announces it


def readable(descriptor):
    return select.select([descriptor], [], [], 0)[0] != []


class PlayedLock:
    """A token's lock that plays a race: `before` runs once just before it is next taken, `after` once
    just after it is next released.
    """

    def __init__(self, lock, *, before=None, after=None):
        self._lock, self._before, self._after = lock, before, after
        self.locked = lock.locked

    def __enter__(self):
        before, self._before = self._before, None
        if before is not None:
            before()
        self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()
        after, self._after = self._after, None
        if after is not None:
            after()


# -- the switch --------------------------------------------------------------------------------


def test_a_new_token_is_open():
    token = CancellationToken()
    assert token.cancelled is False
    assert token.cause is None
    assert token.text is None
    token.raise_if_cancelled()
    assert token.wait(0) is False
    assert "open" in repr(token)


def test_cancel_stores_the_cause_and_says_that_it_did():
    token = CancellationToken()
    assert token.cancel() is True
    assert token.cancelled is True
    assert token.cause is Cause.USER
    assert "cancelled: user" in repr(token)


@pytest.mark.parametrize("cause", list(Cause))
def test_a_cause_is_given_as_a_member_or_as_its_word(cause):
    by_member, by_word = CancellationToken(), CancellationToken()
    by_member.cancel(cause)
    by_word.cancel(cause.value)
    assert by_member.cause is by_word.cause is cause


def test_a_cause_equals_and_prints_as_its_plain_word():
    assert Cause.USER == "user"
    assert str(Cause.TIMEOUT) == f"{Cause.TIMEOUT}" == "timeout"
    assert {cause.value for cause in Cause} == {"user", "parent", "timeout", "disposed", "hook"}


def test_an_unknown_cause_is_refused_and_changes_nothing():
    token = CancellationToken()
    with pytest.raises(ValueError, match="whim"):
        token.cancel("whim")
    assert not token.cancelled


def test_the_first_cause_wins_and_never_changes():
    token = CancellationToken()
    assert token.cancel("hook", "budget spent") is True
    assert token.cancel("user", "too late") is False
    assert (token.cause, token.text) == (Cause.HOOK, "budget spent")


@concurrent
def test_of_many_cancels_at_once_exactly_one_wins():
    for _ in range(100):
        token = CancellationToken()
        gate = threading.Barrier(5)

        def race(cause):
            gate.wait(PATIENCE)
            return token.cancel(cause, cause.value)

        joins = [in_thread(race, cause) for cause in Cause]
        won = [cause for cause, join in zip(Cause, joins) if join()]
        assert won == [token.cause]
        assert token.text == token.cause.value


def test_a_cancelled_token_raises_cancelled_which_no_except_exception_swallows():
    token = CancellationToken()
    token.cancel("hook", "budget spent")
    with pytest.raises(Cancelled) as caught:
        try:
            token.raise_if_cancelled()
        except Exception:  # what a careless tool does
            pytest.fail("swallowed")
    assert caught.value.token is token
    assert caught.value.cause is Cause.HOOK
    assert str(caught.value) == "cancelled: hook (budget spent)"


def test_the_words_of_cancelled_without_a_text():
    token = CancellationToken()
    token.cancel("timeout")
    assert str(Cancelled(token)) == "cancelled: timeout"


# -- waiting -----------------------------------------------------------------------------------


def test_wait_returns_at_once_on_a_cancelled_token():
    token = CancellationToken()
    token.cancel()
    assert token.wait() is True
    assert token.wait(0) is True


@pytest.mark.parametrize("timeout", [-1, 0, 0.001])
def test_wait_gives_up_after_its_time(timeout):
    token = CancellationToken()
    assert token.wait(timeout) is False
    assert not token._wakeups and not token._on_close


@concurrent
@pytest.mark.parametrize("timeout", [None, 60, float("inf"), 1e300])
def test_wait_is_woken_by_a_cancel(timeout):
    token = CancellationToken()
    join = in_thread(token.wait, timeout)
    eventually(lambda: token._wakeups)
    token.cancel()
    assert join() is True


@concurrent
def test_every_waiter_is_woken():
    token = CancellationToken()
    joins = [in_thread(token.wait) for _ in range(8)]
    eventually(lambda: len(token._wakeups) == 8)
    token.cancel()
    assert [join() for join in joins] == [True] * 8


@concurrent
def test_wait_is_let_go_when_the_token_is_closed():
    token = CancellationToken()
    join = in_thread(token.wait)
    eventually(lambda: token._wakeups)
    token.close()
    assert join() is False


def test_wait_on_a_closed_token_does_not_wait():
    token = CancellationToken()
    token.close()
    assert token.wait() is False


@concurrent
def test_wait_never_misses_a_cancel_that_comes_while_it_begins():
    for _ in range(300):
        token = CancellationToken()
        join = in_thread(token.wait, PATIENCE)
        token.cancel()
        assert join() is True


@concurrent
def test_wait_sees_a_cancel_that_comes_just_before_it_registers():
    token = CancellationToken()
    token._lock = PlayedLock(token._lock, before=token.cancel)
    assert in_thread(token.wait)() is True


# -- being woken -------------------------------------------------------------------------------


def test_a_wake_up_runs_once_in_the_thread_that_cancels():
    token = CancellationToken()
    ran = []
    with token.on_cancel(lambda: ran.append(threading.current_thread())):
        assert ran == []
        token.cancel()
        token.cancel()
    assert ran == [threading.current_thread()]


def test_a_wake_up_does_not_run_once_its_block_is_left():
    token = CancellationToken()
    ran = []
    with token.on_cancel(lambda: ran.append(1)):
        pass
    token.cancel()
    assert ran == []
    assert not token._wakeups


def test_a_wake_up_goes_also_when_its_block_is_left_by_an_exception():
    token = CancellationToken()
    with pytest.raises(KeyError):
        with token.on_cancel(lambda: pytest.fail("ran")):
            raise KeyError
    token.cancel()


def test_a_wake_up_that_is_registered_after_the_cancel_runs_at_once():
    token = CancellationToken()
    token.cancel()
    ran = []
    with token.on_cancel(lambda: ran.append(threading.current_thread())):
        assert ran == [threading.current_thread()]
    assert len(ran) == 1


def test_a_cancel_that_comes_just_before_the_registration_runs_the_wake_up():
    token = CancellationToken()
    ran = []
    token._lock = PlayedLock(token._lock, before=token.cancel)
    with token.on_cancel(lambda: ran.append(1)):
        assert ran == [1]
    assert ran == [1]


def test_a_cancel_that_comes_just_after_the_registration_runs_the_wake_up():
    token = CancellationToken()
    ran = []
    token._lock = PlayedLock(token._lock, after=token.cancel)
    with token.on_cancel(lambda: ran.append(1)):
        assert ran == [1]
    assert ran == [1]


def test_a_cancel_that_comes_just_before_the_block_is_left_runs_the_wake_up():
    token = CancellationToken()
    ran = []
    with token.on_cancel(lambda: ran.append(1)):
        token._lock = PlayedLock(token._lock, before=token.cancel)
    assert ran == [1]


def test_the_same_function_registered_twice_runs_twice():
    token = CancellationToken()
    ran = []

    def wake():
        ran.append(1)

    with token.on_cancel(wake):
        with token.on_cancel(wake):
            pass
        with token.on_cancel(wake):
            token.cancel()
    assert ran == [1, 1]


def test_the_last_registered_wake_up_runs_first():
    token = CancellationToken()
    order = []
    with token.on_cancel(lambda: order.append("outer")), token.on_cancel(lambda: order.append("inner")):
        token.cancel()
    assert order == ["inner", "outer"]


def test_the_whole_tree_shows_the_cause_before_the_first_wake_up_runs():
    token = CancellationToken()
    child = token.child()
    grandchild = child.child()
    seen = []
    with token.on_cancel(lambda: seen.append((token.cause, child.cause, grandchild.cause))):
        token.cancel("timeout")
    assert seen == [(Cause.TIMEOUT, Cause.TIMEOUT, Cause.TIMEOUT)]


def test_wake_ups_run_with_no_lock_held():
    """A wake-up may do with the tree whatever it likes; with a lock held this would stand still."""
    root = CancellationToken()
    token = root.child()
    below = token.child()
    done = []

    def wake():
        assert token.cancel() is False
        with token.on_cancel(lambda: done.append("registered")):
            pass
        assert token.child().cancelled
        assert readable(token.fileno())
        assert root.child().cancelled
        assert token.wait(0) is True
        below.close()
        token.close()
        done.append("end")

    with token.on_cancel(wake):
        root.cancel()
    assert done == ["registered", "end"]


def test_a_wake_up_that_raises_stops_no_other_and_is_logged(caplog):
    token = CancellationToken()
    child = token.child()
    ran = []

    def fail():
        raise RuntimeError("this wake-up is broken")

    with token.on_cancel(lambda: ran.append("first")), token.on_cancel(fail):
        with child.on_cancel(lambda: ran.append("child")):
            with caplog.at_level(logging.ERROR, logger="syncagent"):
                assert token.cancel() is True
    assert sorted(ran) == ["child", "first"]
    assert "this wake-up is broken" in caplog.text


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, Cancelled])
def test_a_keyboard_interrupt_in_a_wake_up_leaves_only_after_the_last_one(kind):
    token = CancellationToken()
    ran = []

    def interrupted():
        raise kind(token)

    def interrupted_again():
        ran.append("again")
        raise ValueError

    with token.on_cancel(lambda: ran.append("outer")), token.on_cancel(interrupted_again):
        with token.on_cancel(interrupted), token.on_cancel(lambda: ran.append("inner")):
            with pytest.raises(kind):
                token.cancel()
    assert ran == ["inner", "again", "outer"]
    assert token.cancelled


def test_a_wake_up_that_raises_at_once_does_not_disturb_the_block(caplog):
    token = CancellationToken()
    token.cancel()
    ran = []
    with token.on_cancel(lambda: 1 / 0):
        ran.append(1)
    assert ran == [1]
    assert "ZeroDivisionError" in caplog.text


@concurrent
def test_registering_against_cancelling_runs_each_wake_up_exactly_once():
    """Whoever comes first: a wake-up that was registered when the block ended its wait has run once."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(400):
            token = CancellationToken()
            gate = threading.Barrier(5)
            counts = [[], [], [], []]

            def register(count):
                gate.wait(PATIENCE)
                with token.on_cancel(lambda: count.append(1)):
                    eventually(lambda: count)

            def cancel():
                gate.wait(PATIENCE)
                return token.cancel()

            joins = [in_thread(register, count) for count in counts] + [in_thread(cancel)]
            for join in joins:
                join()
            assert counts == [[1]] * 4
    finally:
        sys.setswitchinterval(before)


@concurrent
def test_leaving_against_cancelling_runs_a_wake_up_at_most_once():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(200):
            token = CancellationToken()
            gate = threading.Barrier(2)
            ran = []

            def block():
                gate.wait(PATIENCE)
                for _ in range(20):
                    with token.on_cancel(lambda: ran.append(1)):
                        if ran:
                            return

            join = in_thread(block)
            gate.wait(PATIENCE)
            token.cancel()
            join()
            # In its last round, or in each round after the cancel: at once there, and then it left.
            assert len(ran) <= 2
            assert not token._wakeups
    finally:
        sys.setswitchinterval(before)


# -- the descriptor ----------------------------------------------------------------------------


def test_the_descriptor_becomes_readable_and_stays_so():
    with CancellationToken() as token:
        descriptor = token.fileno()
        assert token.fileno() == descriptor
        assert not readable(descriptor)
        token.cancel()
        assert [readable(descriptor) for _ in range(3)] == [True] * 3
        assert token.fileno() == descriptor


def test_the_descriptor_of_a_cancelled_token_is_readable():
    with CancellationToken() as token:
        token.cancel()
        assert readable(token.fileno())


def test_the_descriptor_of_a_child_becomes_readable():
    with CancellationToken() as token, token.child() as child:
        descriptor = child.fileno()
        token.cancel()
        assert readable(descriptor)


def test_a_token_is_itself_something_to_select_on():
    with CancellationToken() as token:
        token.cancel()
        assert select.select([token], [], [], 0)[0] == [token]


@concurrent
def test_poll_is_woken_while_it_blocks():
    with CancellationToken() as token:
        poll = select.poll()
        poll.register(token.fileno(), select.POLLIN)
        join = in_thread(poll.poll, PATIENCE * 1000)
        token.cancel()
        assert join() == [(token.fileno(), select.POLLIN)]


def test_the_descriptor_is_not_inherited_by_programs():
    with CancellationToken() as token:
        token.fileno()
        assert [os.get_inheritable(end) for end in token._pipe[:2]] == [False, False]


@pytest.mark.parametrize("cancelled", [False, True])
def test_close_frees_the_descriptor(cancelled):
    before = len(os.listdir("/proc/self/fd"))
    token = CancellationToken()
    token.fileno()
    assert len(os.listdir("/proc/self/fd")) == before + 2
    if cancelled:
        token.cancel()
    token.close()
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ValueError, match="closed"):
        token.fileno()


def test_a_token_that_nobody_polls_holds_no_descriptor():
    before = len(os.listdir("/proc/self/fd"))
    token = CancellationToken()
    with token.on_cancel(lambda: None):
        token.child()
        token.cancel()
    assert len(os.listdir("/proc/self/fd")) == before
    token.close()


# -- the tree ----------------------------------------------------------------------------------


def test_cancelling_a_parent_cancels_all_below_it_with_its_cause_and_text():
    token = CancellationToken()
    child = token.child()
    grandchild = child.child()
    token.cancel("hook", "budget spent")
    for below in (child, grandchild):
        assert (below.cause, below.text) == (Cause.HOOK, "budget spent")


def test_cancelling_a_child_cancels_neither_its_parent_nor_its_sisters():
    token = CancellationToken()
    child, sister = token.child(), token.child()
    child.cancel("timeout")
    assert not token.cancelled
    assert not sister.cancelled
    token.cancel("user")
    assert (child.cause, sister.cause) == (Cause.TIMEOUT, Cause.USER)


def test_a_child_shows_the_cause_that_it_was_made_for_and_hands_it_on():
    token = CancellationToken()
    turn = token.child(cause="parent")
    call = turn.child()
    token.cancel("user")
    assert (token.cause, turn.cause, call.cause) == (Cause.USER, Cause.PARENT, Cause.PARENT)


def test_a_child_with_a_cause_of_its_own_still_can_be_cancelled_for_another_reason():
    token = CancellationToken()
    child = token.child(cause=Cause.PARENT)
    child.cancel("timeout")
    token.cancel("user")
    assert child.cause is Cause.TIMEOUT


def test_an_unknown_cause_for_a_child_is_refused():
    with pytest.raises(ValueError):
        CancellationToken().child(cause="whim")


@pytest.mark.parametrize("inherit, shown", [(None, Cause.HOOK), ("parent", Cause.PARENT)])
def test_a_child_of_a_cancelled_token_is_born_cancelled(inherit, shown):
    token = CancellationToken()
    token.cancel("hook", "budget spent")
    child = token.child(cause=inherit)
    assert (child.cause, child.text) == (shown, "budget spent")
    assert child.cancel() is False
    assert not token._children


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_child_made_just_around_the_cancel_is_cancelled(moment):
    token = CancellationToken()
    token._lock = PlayedLock(token._lock, **{moment: token.cancel})
    assert token.child().cancelled


def test_a_child_of_a_cancelled_and_closed_token_is_born_cancelled_too():
    token = CancellationToken()
    token.cancel()
    token.close()
    assert token.child().cancelled


def test_wake_ups_of_children_run_too():
    token = CancellationToken()
    ran = []
    with token.child() as child, child.child() as below:
        with child.on_cancel(lambda: ran.append("child")), below.on_cancel(lambda: ran.append("below")):
            token.cancel()
    assert sorted(ran) == ["below", "child"]


def test_a_tree_may_be_deeper_than_the_stack():
    tokens = [CancellationToken()]
    for _ in range(sys.getrecursionlimit() * 2):
        tokens.append(tokens[-1].child())
    tokens[0].cancel("disposed")
    assert {token.cause for token in tokens} == {Cause.DISPOSED}


def test_a_tree_may_be_wide():
    token = CancellationToken()
    children = [token.child() for _ in range(5000)]
    token.cancel()
    assert all(child.cancelled for child in children)
    for child in children:
        child.close()
    assert not token._children


@concurrent
def test_no_child_made_during_a_cancel_is_missed():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(200):
            token = CancellationToken()
            middle = token.child()
            gate = threading.Barrier(3)

            def grow(parent):
                gate.wait(PATIENCE)
                return [parent.child() for _ in range(30)]

            joins = [in_thread(grow, token), in_thread(grow, middle)]
            gate.wait(PATIENCE)
            token.cancel()
            for join in joins:
                assert all(child.cancelled for child in join())
    finally:
        sys.setswitchinterval(before)


# -- closing -----------------------------------------------------------------------------------


def test_a_closed_token_is_not_cancelled_any_more():
    token = CancellationToken()
    token.close()
    assert token.cancel() is False
    assert not token.cancelled
    assert "closed" in repr(token)


def test_a_cancelled_token_stays_cancelled_when_it_is_closed():
    token = CancellationToken()
    token.cancel("timeout")
    token.close()
    assert token.cancelled
    assert token.cause is Cause.TIMEOUT
    with pytest.raises(Cancelled):
        token.raise_if_cancelled()


def test_closing_cancels_nothing_and_may_be_repeated():
    with CancellationToken() as token:
        with token.child() as child, child.on_cancel(lambda: pytest.fail("ran")):
            child.close()
            child.close()
        assert not child.cancelled
    token.close()
    assert not token.cancelled


def test_a_closed_token_keeps_no_wake_up():
    token = CancellationToken()
    with token.on_cancel(lambda: None):
        token.close()
        assert not token._wakeups


def test_a_closed_child_has_left_its_parent():
    token = CancellationToken()
    child = token.child()
    child.close()
    assert not token._children
    token.cancel()
    assert not child.cancelled


def test_closing_a_parent_first_is_no_error():
    token = CancellationToken()
    child = token.child()
    token.close()
    child.close()
    assert not child.cancelled


def test_children_come_and_go_without_a_trace():
    token = CancellationToken()
    for _ in range(1000):
        with token.child() as child, child.on_cancel(lambda: None):
            child.wait(0)
    assert not token._children and not token._wakeups and not token._on_close


def test_a_child_of_a_closed_token_lives_on_its_own():
    token = CancellationToken()
    token.close()
    child = token.child()
    assert not child.cancelled
    assert child.cancel() is True


def test_the_block_of_a_token_closes_it_also_when_it_is_left_by_an_exception():
    with pytest.raises(KeyError):
        with CancellationToken() as token:
            raise KeyError
    assert token.cancel() is False


@concurrent
def test_closing_against_cancelling_leaves_no_descriptor_and_no_half_state():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(300):
        parent = CancellationToken()
        token = parent.child()
        token.fileno()
        gate = threading.Barrier(3)

        def act(fn):
            gate.wait(PATIENCE)
            return fn()

        joins = [in_thread(act, fn) for fn in (token.close, token.cancel, parent.cancel)]
        for join in joins:
            join()
        assert parent.cancelled
        assert not parent._children
        assert token.cause in (None, Cause.USER)
    assert len(os.listdir("/proc/self/fd")) == before


# -- following others --------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1])
def test_a_linked_token_is_cancelled_by_any_of_its_sources_with_that_cause(which):
    sources = [CancellationToken(), CancellationToken()]
    with CancellationToken.linked(*sources) as token:
        ran = []
        with token.on_cancel(lambda: ran.append(1)):
            sources[which].cancel("hook", "budget spent")
        assert (token.cause, token.text) == (Cause.HOOK, "budget spent")
        assert ran == [1]
        assert not sources[1 - which].cancelled


def test_a_token_linked_to_a_cancelled_one_is_cancelled():
    source = CancellationToken()
    source.cancel("timeout")
    with CancellationToken.linked(CancellationToken(), source) as token:
        assert token.cause is Cause.TIMEOUT


def test_cancelling_a_linked_token_cancels_no_source():
    source, event = CancellationToken(), threading.Event()
    with CancellationToken.linked(source, event) as token:
        token.cancel()
    assert not source.cancelled
    assert not event.is_set()


def test_closing_a_linked_token_takes_its_wake_up_out_of_the_source():
    source = CancellationToken()
    for _ in range(100):
        CancellationToken.linked(source).close()
    assert not source._wakeups
    source.cancel()


def test_a_token_linked_to_nothing_is_a_token():
    with CancellationToken.linked() as token:
        assert token.cancel() is True


def test_linking_to_something_else_is_refused_and_leaves_no_thread():
    event, source = threading.Event(), CancellationToken()
    with pytest.raises(TypeError, match="'soon'"):
        CancellationToken.linked(source, event, "soon")
    assert not source._wakeups
    assert not event._cond._waiters


@concurrent
def test_an_event_cancels_a_linked_token_with_user():
    event = threading.Event()
    with CancellationToken.linked(event) as token:
        assert not token.wait(0)
        event.set()
        assert token.wait(PATIENCE) is True
        assert token.cause is Cause.USER


def test_a_token_linked_to_a_set_event_is_cancelled_at_once(monkeypatch):
    event = threading.Event()
    event.set()
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail("no thread is needed"))
    with CancellationToken.linked(event) as token:
        assert token.cause is Cause.USER


@concurrent
def test_an_event_that_is_set_and_cleared_has_cancelled():
    event = threading.Event()
    with CancellationToken.linked(event) as token:
        event.set()
        event.clear()
        assert token.wait(PATIENCE) is True


def link_threads():
    return [thread for thread in threading.enumerate() if thread.name == "syncagent-event-link"]


@concurrent
def test_closing_ends_the_thread_that_watches_an_event_and_wakes_no_other_waiter():
    event = threading.Event()
    join = in_thread(event.wait, PATIENCE)
    eventually(lambda: event._cond._waiters)
    token = CancellationToken.linked(event)
    assert len(link_threads()) == 1
    token.close()
    assert link_threads() == []
    assert len(event._cond._waiters) == 1, "the other waiter waits on"
    assert not event.is_set()
    event.set()
    assert join() is True
    assert not token.cancelled


@concurrent
@pytest.mark.parametrize("how", ["itself", "another source"])
def test_the_thread_that_watches_an_event_ends_when_the_token_is_cancelled_otherwise(how):
    event, source = threading.Event(), CancellationToken()
    token = CancellationToken.linked(event, source)
    (source if how == "another source" else token).cancel("timeout")
    eventually(lambda: not link_threads())
    assert not event._cond._waiters
    assert token.cause is Cause.TIMEOUT
    token.close()


@concurrent
def test_a_cancel_while_the_watch_of_an_event_begins_ends_its_thread():
    class Played(CancellationToken):
        def __init__(self):
            super().__init__()
            self._lock = PlayedLock(self._lock, after=self.cancel)

    event = threading.Event()
    token = Played.linked(event)
    assert token.cancelled
    eventually(lambda: not link_threads())
    assert not event._cond._waiters
    token.close()


@concurrent
def test_linking_to_a_cancelled_token_and_an_event_starts_no_thread():
    source = CancellationToken()
    source.cancel()
    with CancellationToken.linked(source, threading.Event()):
        assert link_threads() == []


@concurrent
def test_a_wake_up_in_the_watching_thread_may_close_the_token():
    event = threading.Event()
    token = CancellationToken.linked(event)
    closed = threading.Event()

    def wake():
        token.close()
        closed.set()

    with token.on_cancel(wake):
        event.set()
        assert closed.wait(PATIENCE)
    assert token.cancelled


@concurrent
def test_an_event_that_is_set_while_the_linked_token_closes_leaves_no_thread():
    for _ in range(200):
        event = threading.Event()
        token = CancellationToken.linked(event)
        join = in_thread(event.set)
        token.close()
        join()
        assert link_threads() == []
        assert not event._cond._waiters


@concurrent
def test_an_event_of_another_kind_works_too():
    context = multiprocessing.get_context("fork")  # "spawn" would leave its resource tracker running
    event = context.Event()
    with CancellationToken.linked(event) as token:
        event.set()
        assert token.wait(PATIENCE) is True
    with CancellationToken.linked(context.Event()):
        assert len(link_threads()) == 1
    assert link_threads() == []


@concurrent
def test_a_thread_that_can_not_be_started_leaves_nothing(monkeypatch):
    event, source = threading.Event(), CancellationToken()

    def no_more(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_more)
    with pytest.raises(RuntimeError, match="new thread"):
        CancellationToken.linked(source, event)
    assert not event._cond._waiters
    assert not source._wakeups


# -- deadlines ---------------------------------------------------------------------------------


@concurrent
@pytest.mark.parametrize("seconds", [0.01, 0, -1])
def test_a_deadline_cancels_with_timeout(seconds):
    token = CancellationToken()
    with token.deadline(seconds) as same:
        assert same is token
        assert token.wait(PATIENCE) is True
    assert token.cause is Cause.TIMEOUT


@concurrent
@pytest.mark.parametrize("seconds", [60, float("inf"), 1e300])
def test_a_deadline_that_is_left_in_time_cancels_nothing_and_leaves_no_thread(seconds):
    token = CancellationToken()
    with token.deadline(seconds):
        assert [thread for thread in threading.enumerate() if thread.name == "syncagent-deadline"]
    assert not [thread for thread in threading.enumerate() if thread.name == "syncagent-deadline"]
    assert not token.cancelled


@concurrent
def test_a_deadline_goes_also_when_its_block_is_left_by_an_exception():
    token = CancellationToken()
    with pytest.raises(KeyError), token.deadline(60):
        raise KeyError
    assert not token.cancelled


@concurrent
def test_a_deadline_on_a_child_limits_a_part_of_the_work():
    token = CancellationToken()
    with token.child() as part, part.deadline(0.01):
        assert part.wait(PATIENCE) is True
    assert part.cause is Cause.TIMEOUT
    assert not token.cancelled


@concurrent
def test_a_cancel_before_the_deadline_decides():
    token = CancellationToken()
    token.cancel("user")
    with token.deadline(0):
        eventually(lambda: not [one for one in threading.enumerate() if one.name == "syncagent-deadline"])
    assert token.cause is Cause.USER


@concurrent
def test_a_deadline_that_passed_is_not_taken_back():
    token = CancellationToken()
    with token.deadline(0):
        assert token.wait(PATIENCE)
    assert token.cancel("user") is False
    assert token.cause is Cause.TIMEOUT


@concurrent
def test_the_shorter_of_two_deadlines_decides():
    token = CancellationToken()
    with token.deadline(60), token.deadline(0.01):
        assert token.wait(PATIENCE)
    assert token.cause is Cause.TIMEOUT


# -- all at once -------------------------------------------------------------------------------


@concurrent
def test_a_shaken_tree_ends_as_the_rules_say():
    """Threads grow, wait, register, poll and close all over a tree while it is cancelled at the root."""
    for seed in range(30):
        root = CancellationToken()
        missed = []

        def shake(number):
            rng = random.Random(f"{seed} {number}")
            with contextlib.ExitStack() as stack:
                token = root
                while not token.cancelled:
                    token = stack.enter_context(rng.choice([root, token]).child())
                    ran = []
                    stack.enter_context(token.on_cancel(lambda ran=ran: ran.append(1)))
                    if rng.random() < 0.2:
                        token.fileno()
                    if token.wait(rng.random() * 0.002):
                        eventually(lambda: ran)
                        missed.extend(ran[1:])

        joins = [in_thread(shake, number) for number in range(4)]
        time.sleep(0.01)  # lets the tree grow; any length will do
        assert root.cancel() is True
        for join in joins:
            join()
        assert missed == []
        assert not root._children and not root._wakeups


@concurrent
def test_a_cancel_in_a_forked_child_wakes_no_poll_of_its_parent():
    with CancellationToken() as token:
        poll = select.poll()
        poll.register(token.fileno(), select.POLLIN)

        def check():
            token.cancel()
            own = select.poll()
            own.register(token.fileno(), select.POLLIN)
            return own.poll(0)

        assert in_child(check) == 0
        assert poll.poll(0) == [] and not token.cancelled
