"""SIGTERM and SIGHUP outside of a turn are exit codes, and whoever had a handler keeps it."""

import os
import signal
import threading

import pytest

from syncagent.surface.cli.signals import aside, exiting

pytestmark = pytest.mark.concurrent

CODES = {signal.SIGTERM: 143, signal.SIGHUP: 129}


def handlers():
    return {number: signal.getsignal(number) for number in (signal.SIGINT, *CODES)}


@pytest.mark.parametrize("number, code", CODES.items())
def test_a_signal_becomes_an_exit_code(number, code):
    before = handlers()
    with pytest.raises(SystemExit) as caught:
        with exiting():
            os.kill(os.getpid(), number)
            signal.pause()  # pragma: no cover - the signal is there already
    assert caught.value.code == code
    assert handlers() == before


def test_inside_of_aside_nobody_handles_them():
    before = handlers()
    with exiting():
        ours = handlers()
        assert ours[signal.SIGTERM] is not signal.SIG_DFL
        with aside():
            assert handlers() == before
        assert handlers() == ours
    with aside():
        assert handlers() == before


@pytest.mark.parametrize("number", CODES)
def test_an_ignored_or_handled_signal_stays_so(number):
    old = signal.getsignal(number)
    for handler in (signal.SIG_IGN, lambda number, frame: None):
        signal.signal(number, handler)
        try:
            with exiting():
                assert signal.getsignal(number) is handler
            assert signal.getsignal(number) is handler
        finally:
            signal.signal(number, old)


def test_off_the_main_thread_nothing_is_touched():
    seen = []

    def work():
        with exiting(), aside():
            seen.append(handlers())

    before = handlers()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
