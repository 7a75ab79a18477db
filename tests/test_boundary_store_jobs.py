"""Waiting for a box, and being woken."""

import queue
import signal
import threading

import pytest

from syncagent.boundary.store.jobs import Job, wait_for_box
from syncagent.cancel import CancellationToken, Cancelled


def test_a_wait_is_over_when_it_says_so():
    job = Job(work=lambda desk, patience: None)
    answers = iter([False, False, True])
    for _ in range(3):
        job.box.put(None)
    wait_for_box(job.box, None, lambda: next(answers), wake_ends=False)
    assert job.box.empty() and next(answers, None) is None


@pytest.mark.concurrent
def test_a_cancel_ends_the_wait():
    box = queue.SimpleQueue()
    with CancellationToken() as token:
        timer = threading.Timer(0.05, token.cancel)
        timer.start()
        with pytest.raises(Cancelled) as caught:
            wait_for_box(box, token, lambda: False, wake_ends=True)
        timer.join()
        assert caught.value.token is token


def test_a_cancel_only_asks_again_where_the_work_must_end_by_itself():
    box = queue.SimpleQueue()
    asked = []
    with CancellationToken() as token:
        token.cancel()
        wait_for_box(box, token, lambda: asked.append(1) or True, wake_ends=False)
    assert asked == [1]


def test_being_over_wins_over_a_cancel():
    box = queue.SimpleQueue()
    with CancellationToken() as token:
        token.cancel()
        wait_for_box(box, token, lambda: True, wake_ends=True)


@pytest.mark.concurrent
def test_a_signals_handler_can_end_the_wait_of_the_thread_that_it_interrupts():
    token = CancellationToken()
    old = signal.signal(signal.SIGALRM, lambda *args: token.cancel())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(Cancelled):
            wait_for_box(queue.SimpleQueue(), token, lambda: False, wake_ends=True)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        token.close()
