"""Where a command writes, and what it does when it can't."""

import errno
import io

import pytest

from syncagent.surface.cli.screen import OutputFailed, Screen, may_colour


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        super().isatty()  # raises if it is closed
        return True


class Broken(io.StringIO):
    def __init__(self, error):
        super().__init__()
        self.error = error

    def write(self, text):
        raise self.error


def screen(monkeypatch, out=None, err=None):
    streams = out or io.StringIO(), err or io.StringIO()
    monkeypatch.setattr("sys.stdout", streams[0])
    monkeypatch.setattr("sys.stderr", streams[1])
    return (Screen(), *streams)


def test_answers_and_notices_go_to_different_streams(monkeypatch):
    made, out, err = screen(monkeypatch)
    made.write("part")
    made.notice("a\nnotice \x1b[2J")
    made.end_line()
    made.end_line()
    made.line("whole")
    made.json({"naïve": 1})
    assert out.getvalue() == 'part\nwhole\n{"naïve": 1}\n'
    assert err.getvalue() == "a notice \\x1b[2J\n"


def test_a_notice_does_not_stand_on_the_line_of_the_answer_on_a_terminal(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    made, out, err = screen(monkeypatch, Terminal(), Terminal())
    made.write("half an ans")
    made.notice("stopping")
    assert err.getvalue() == "\nstopping\n"
    made.notice("killing")
    assert err.getvalue() == "\nstopping\nkilling\n"
    assert out.getvalue() == "half an ans", "what is redirected elsewhere is not disturbed"


def test_styling_is_for_terminals_only_and_not_with_no_color(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    made, out, err = screen(monkeypatch, Terminal(), Terminal())
    made.heading("turn 1")
    made.notice("note")
    assert (out.getvalue(), err.getvalue()) == ("\x1b[1mturn 1\x1b[0m\n", "\x1b[2mnote\x1b[0m\n")
    assert not may_colour(io.StringIO())
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            assert not may_colour(Terminal())
    monkeypatch.delenv("TERM")
    assert not may_colour(Terminal())


def test_a_stream_that_is_closed_or_missing_takes_no_colour():
    closed = Terminal()
    closed.close()
    assert not may_colour(closed)
    assert not may_colour(None)


@pytest.mark.parametrize("quiet", [True, False])
def test_an_answer_that_nobody_gets_is_a_failure(monkeypatch, quiet):
    error = BrokenPipeError() if quiet else OSError(errno.ENOSPC, "No space left on device")
    made, _, _ = screen(monkeypatch, Broken(error))
    with pytest.raises(OutputFailed) as caught:
        made.line("text")
    assert caught.value.quiet is quiet


def test_a_notice_that_nobody_gets_is_no_failure(monkeypatch):
    made, _, _ = screen(monkeypatch, err=Broken(BrokenPipeError()))
    made.notice("text")


def test_a_closed_standard_output_is_written_to_in_vain(monkeypatch):
    monkeypatch.setattr("sys.stdout", None)
    monkeypatch.setattr("sys.stderr", None)
    made = Screen()
    made.line("text")
    made.notice("text")
    made.json({})


def test_what_an_old_terminal_can_not_show_is_escaped(monkeypatch):
    raw = io.BytesIO()
    made, out, _ = screen(monkeypatch, io.TextIOWrapper(raw, encoding="latin-1"))
    made.line("naïve 日本")
    made.json({"text": "naïve 日本"}, flush=True)
    text = raw.getvalue().decode("latin-1")
    assert text == 'naïve \\u65e5\\u672c\n{"text": "na\\u00efve \\u65e5\\u672c"}\n'
