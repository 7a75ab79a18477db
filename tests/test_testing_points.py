"""Points where a test stops, breaks or kills what it tests."""

import signal
import subprocess
import sys
import threading

import pytest

from syncagent.testing import FailPoints, Point


def in_thread(fn):
    thread = threading.Thread(target=fn)
    thread.start()
    return thread


def test_an_unplanned_point_only_counts():
    points = FailPoints()
    assert points.hits("a") == 0
    points("a", seq=1)
    points("a")
    points("b")
    assert (points.hits("a"), points.hits("b")) == (2, 1)


def test_fail_raises_at_the_nth_hit_from_now_and_once():
    points = FailPoints()
    points("a")
    points.fail("a", OSError("full"), nth=2)
    points("a")
    with pytest.raises(OSError, match="full"):
        points("a")
    points("a")


def test_fail_takes_a_class_and_repeats_as_often_as_asked():
    points = FailPoints()
    points.fail("a", KeyError, times=2)
    for _ in range(2):
        with pytest.raises(KeyError):
            points("a")
    points("a")
    points.fail("a", KeyError, times=None)
    for _ in range(5):
        with pytest.raises(KeyError):
            points("a")
    points.clear()
    points("a")


def test_a_plan_may_ask_for_hits_with_certain_values():
    points = FailPoints()
    points.fail("a", OSError, nth=2, type="x", seq=1)
    points("a", type="x", seq=1)
    points("a", type="x", seq=2)
    points("a", type="x")
    points("a")
    with pytest.raises(OSError):
        points("a", type="x", seq=1, more=3)
    assert points.hits("a") == 5


def test_a_count_below_one_is_refused():
    with pytest.raises(ValueError):
        FailPoints().fail("a", OSError, nth=0)
    with pytest.raises(ValueError):
        FailPoints().fail("a", OSError, times=0)


@pytest.mark.concurrent
def test_hold_stops_the_code_until_the_point_is_released():
    points = FailPoints()
    point = points.hold("a", nth=2)
    passed = threading.Event()

    def code():
        points("a", seq=1)
        points("a", seq=2)
        passed.set()

    thread = in_thread(code)
    assert point.reached.wait(10)
    assert not passed.is_set()
    assert point.info == {"seq": 2}
    point.release()
    thread.join(10)
    assert passed.is_set()


@pytest.mark.concurrent
def test_leaving_the_block_releases_what_is_held():
    with FailPoints() as points:
        point = points.hold("a")
        thread = in_thread(lambda: points("a"))
        assert point.reached.wait(10)
    thread.join(10)
    assert not thread.is_alive()


def test_a_released_point_stops_nobody():
    with Point("a") as point:
        assert "not reached" in repr(point)
    point.pause(patience=5)
    assert point.reached.is_set()
    assert "released" in repr(point)


def test_a_forgotten_point_says_so():
    with pytest.raises(AssertionError, match="'a'"):
        Point("a").pause(patience=0.01)


@pytest.mark.concurrent
def test_kill_ends_the_process_at_the_nth_hit_as_kill_9_does():
    code = (
        "from syncagent.testing import FailPoints\n"
        "points = FailPoints()\n"
        "points.kill('a', nth=2)\n"
        "points('a'); print('one', flush=True); points('a'); print('two', flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, timeout=60)
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == b"one\n"
