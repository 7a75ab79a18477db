"""What a turn shows while it runs: the answer as it comes, notices beside it, or its events."""

import io
import json
import queue

import pytest
from commands import NASTY, harmless
from log_writer import Log, calls, reasoning

from syncagent import StoreFailed
from syncagent.surface.cli.printer import Printer
from syncagent.surface.cli.screen import Screen

pytestmark = pytest.mark.concurrent


class Shown:
    """Plays events through a printer, and keeps what it has shown."""

    def __init__(self, source, *, answer=True, lines=False, out=None):
        self.out, self.err, self.lost = out or io.StringIO(), io.StringIO(), []
        screen = Screen()
        screen._out, screen._err = self.out, self.err
        self.printer = Printer(
            iter(source),
            screen=screen,
            answer=answer,
            lines=lines,
            retries=5,
            on_lost=lambda: self.lost.append(True),
        )
        self.printer.start()

    def join(self):
        self.printer.join()
        return self

    @property
    def answer(self):
        return self.out.getvalue()

    @property
    def notices(self):
        return self.err.getvalue().splitlines()


def shown(log, **options):
    return Shown(log.events, **options).join()


def test_the_answer_is_printed_as_it_comes_and_its_line_is_ended():
    events = queue.SimpleQueue()
    log = Log().asking().chunk("Hel").chunk("lo")
    for event in log.events:
        events.put(event)
    out = Pieces()
    showing = Shown(iter(events.get, None), out=out)
    assert [out.next(), out.next()] == ["Hel", "lo"]
    events.put(None)
    assert showing.join().answer == "Hello\n"


class Pieces(io.StringIO):
    """Tells of each piece that is written."""

    def __init__(self):
        super().__init__()
        self.pieces = queue.SimpleQueue()

    def write(self, text):
        self.pieces.put(text)
        return super().write(text)

    def next(self):
        return self.pieces.get(timeout=30)


def test_reasoning_and_calls_are_no_answer():
    log = Log().asking().chunk("hm", "reasoning").chunk("{}", "tool_call", index=0, id="c", name="x")
    assert shown(log).answer == ""


def test_the_texts_of_two_steps_stand_on_lines_of_their_own():
    log = Log().asking().chunk("Let me look.").says("Let me look.", *calls("c1")).call("c1").result("c1")
    log.end_step().step().chunk("Three.\n").says("Three.\n").end_step().end_turn()
    assert shown(log).answer == "Let me look.\nThree.\n"


def test_calls_and_their_results_are_notices():
    log = Log().acting("c1", "c2").call("c1").result("c1", said="123").result("c2", "DENIED", "no")
    assert shown(log).notices == [
        'bash {"command":"ls"}',
        "bash done, 3 characters",
        "bash failed: DENIED: denied",
    ]


def test_a_retry_is_a_notice_and_begins_a_new_line():
    log = Log().asking().chunk("first").retry().chunk("second").says("second").end_step().end_turn()
    done = shown(log)
    assert done.answer == "first\nsecond\n"
    assert done.notices == ["retry 1 of 5 in 0.5 s: overloaded: busy"]


def test_a_message_that_had_waited_is_told():
    log = Log().put("mine", "go on").put("other").turn().taken("other").step().user("other", "an old wish")
    log.says("done").end_step().end_turn().turn().taken("mine").step().user("mine", "go on")
    assert shown(log).notices == ["turn 1 takes up a message that has waited: an old wish"]


def test_lines_are_the_events_and_no_answer():
    log = Log().asking().chunk("Hel").says("Hel", interrupted=True).end_step().end_turn("aborted")
    done = shown(log, answer=False, lines=True)
    assert [json.loads(line) for line in done.answer.splitlines()] == log.dicts


def test_without_answer_and_lines_only_notices_are_shown():
    done = shown(Log().acting("c1").call("c1"), answer=False)
    assert done.answer == "" and len(done.notices) == 1


@pytest.mark.parametrize(
    "pieces, text", [(["a\r", "\nb"], "a\nb\n"), (["a\r", "b"], "a\\rb\n"), (["a\r"], "a\\r\n")]
)
def test_a_line_end_that_is_cut_in_two_is_one(pieces, text):
    log = Log().asking()
    for piece in pieces:
        log.chunk(piece)
    assert shown(log).answer == text


def test_nothing_of_a_stranger_reaches_the_terminal_raw():
    call = {"type": "tool_call", "id": NASTY, "name": NASTY, "arguments": NASTY}
    log = Log().put("mine").put("m", NASTY).turn().taken("m").step().user("m", NASTY)
    log.chunk(NASTY).retry(error={"code": NASTY, "message": NASTY})
    log.says(reasoning(NASTY), NASTY, call).call(NASTY, name=NASTY, arguments=NASTY)
    log.result(NASTY, NASTY, NASTY).end_step().end_turn()
    for options in ({}, {"answer": False, "lines": True}):
        done = shown(log, **options)
        assert harmless(done.answer) and harmless("\n".join(done.notices))
        assert len(done.notices) == 4


def test_when_nobody_reads_the_answer_any_more_it_says_so_once_and_ends():
    class Gone(io.StringIO):
        def write(self, text):
            raise BrokenPipeError

    log = Log().asking().chunk("a").chunk("b").says("ab").end_step().end_turn()
    done = Shown(log.events, out=Gone()).join()
    assert done.lost == [True]
    assert done.printer.failure is not None and done.printer.failure.quiet


def test_a_store_that_fails_is_left_to_whoever_waits_for_the_turn():
    def source():
        yield from Log().turn().events
        raise StoreFailed("gone", path="x")

    done = Shown(source()).join()
    assert done.printer.failure is None and done.lost == []


def test_one_that_was_never_started_can_be_joined():
    printer = Printer(
        iter(()), screen=Screen(), answer=True, lines=False, retries=0, on_lost=lambda: None
    )
    printer.join()
