"""What a thread has started by itself: found with all below it, stopped, and never anybody else's."""

import contextlib
import multiprocessing.resource_tracker
import os
import signal
import subprocess
import threading

import pytest
from processes import Mark, state_of, until

from syncagent.boundary.process import proctree
from syncagent.boundary.process.strays import Strays

pytestmark = [
    pytest.mark.concurrent,
    pytest.mark.skipif(not proctree.sees_children(), reason="the kernel lists no children of a thread"),
]


@pytest.fixture
def mark():
    mark = Mark()
    yield mark
    assert mark.pids() == []


@contextlib.contextmanager
def started(mark, script, ready=1):
    """A bash of this thread's, once so many lines have come; all below it carry the mark."""
    with subprocess.Popen(["bash", "-c", script], env=mark.env, stdout=subprocess.PIPE) as child:
        try:
            for _ in range(ready):
                assert child.stdout.readline() == b"ready\n"
            yield child
        finally:
            child.kill()


def stop_until(strays, condition, what, **options):
    """Look again and again, as whoever stops a turn does."""

    def look():
        strays.stop(**options)
        return condition()

    until(look, what)


TREES = {
    "alone": ("echo ready; exec sleep 60", 1),
    "a child": ("echo ready; sleep 60; :", 1),
    "a group": ("sleep 60 & sleep 60 & echo ready; wait", 1),
    "a session of its own": ("setsid bash -c 'echo ready; sleep 60; :' & wait", 1),
    "a pipeline": ("echo ready; sleep 60 | sleep 60 | sleep 60", 1),
    "deep": ("(bash -c 'sleep 60 & echo ready; wait'; :) & bash -c 'echo ready; sleep 60; :'; wait", 2),
}


@pytest.mark.parametrize("tree", TREES)
def test_a_child_is_ended_with_all_below_it(mark, tree):
    strays = Strays()
    with started(mark, *TREES[tree]) as child:
        stop_until(strays, lambda: child.poll() is not None, "the end of the child")
        assert child.returncode == -signal.SIGTERM
        stop_until(strays, lambda: not mark.pids(), "the end of all below it")
    assert f"(pid {child.pid})" in strays.stopped


def test_a_tree_that_takes_no_term_is_killed_after_the_grace(mark):
    strays = Strays(grace=0.2)
    stubborn = "trap '' TERM; (echo ready; sleep 60; :) & echo ready; wait; wait"
    with started(mark, stubborn, 2) as child:
        strays.stop()
        assert child.poll() is None
        stop_until(strays, lambda: child.poll() is not None and not mark.pids(), "the end of them")
        assert child.returncode == -signal.SIGKILL


def test_without_a_grace_it_is_killed_at_once(mark):
    for strays in (Strays(grace=0.0), Strays(grace=1e6)):
        with started(mark, "trap '' TERM; echo ready; while :; do sleep 60; done") as child:
            strays.stop()
            strays.hurry()
            stop_until(strays, lambda: child.poll() is not None and not mark.pids(), "the end of it")


def test_a_stopped_child_is_ended_too(mark):
    strays = Strays(grace=1e6)
    with started(mark, "echo ready; exec sleep 60") as child:
        child.send_signal(signal.SIGSTOP)
        until(lambda: state_of(child.pid) == "T", "the stop of the child")
        stop_until(strays, lambda: child.poll() is not None, "its end")


def test_one_that_its_dead_parent_left_is_ended_if_it_was_seen(mark):
    """The grandchild takes no TERM and outlives its parent, and with it every list of ours."""
    strays = Strays(grace=0.2)
    with started(mark, "(trap '' TERM; echo ready; sleep 60; :) & echo ready; wait", 2) as child:
        strays.stop()
        until(lambda: child.poll() is not None, "the end of the parent")
        assert mark.pids() != []
        stop_until(strays, lambda: not mark.pids(), "the end of the orphan")


def test_what_was_there_before_and_what_is_spared_goes_on(mark):
    with started(mark, "echo ready; exec sleep 60") as before:
        strays = Strays()
        with started(mark, "echo ready; exec sleep 60") as spared:
            with started(mark, "echo ready; exec sleep 60") as mine:
                spare = lambda: [spared.pid]  # noqa: E731
                stop_until(strays, lambda: mine.poll() is not None, "the end of its own", spare=spare)
                assert (before.poll(), spared.poll()) == (None, None)
    # Its name is the shell's for a moment after its line.
    assert strays.stopped in [f"1 process: {name} (pid {mine.pid})" for name in ("sleep", "bash")]


def test_the_children_of_other_threads_go_on(mark):
    begun, done = threading.Event(), threading.Event()
    found = []

    def other():
        with started(mark, "echo ready; exec sleep 60") as child:
            begun.set()
            done.wait(30)
            found.append(child.poll())

    thread = threading.Thread(target=other)
    strays = Strays()
    thread.start()
    assert begun.wait(30)
    for _ in range(3):
        strays.stop()
    done.set()
    thread.join()
    assert found == [None] and strays.stopped == ""


def test_the_helper_that_multiprocessing_keeps_for_all_goes_on():
    tracker = multiprocessing.resource_tracker
    strays = Strays(grace=0.0)
    tracker.ensure_running()
    try:
        pid = tracker._resource_tracker._pid
        strays.stop()
        assert state_of(pid) not in ("", "Z") and strays.stopped == ""
    finally:
        tracker._resource_tracker._stop()


def test_many_are_counted_and_some_named(mark):
    strays = Strays()
    with started(mark, "for i in 1 2 3 4 5 6 7; do sleep 60 & done; echo ready; wait") as child:
        stop_until(strays, lambda: child.poll() is not None and not mark.pids(), "the end of all")
    assert strays.stopped.startswith("8 processes: bash (pid ") and strays.stopped.endswith(" and 3 more")


def test_nothing_was_stopped_where_nothing_was_started():
    strays = Strays()
    strays.stop()
    assert strays.stopped == ""


def test_a_forked_childs_copy_stops_nothing(mark):
    strays = Strays(grace=0.0)
    with started(mark, "echo ready; exec sleep 60") as child:
        pid = os.fork()
        if pid == 0:
            strays.stop()
            os._exit(0 if strays.stopped == "" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert child.poll() is None


def test_a_thread_that_has_ended_has_no_children():
    made = []
    thread = threading.Thread(target=lambda: made.append(Strays()))
    thread.start()
    thread.join()
    made[0].stop()
    assert made[0].stopped == ""
