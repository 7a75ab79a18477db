"""What reaches a terminal can do nothing to it, in text and in JSON."""

import json
import time

import pytest
from commands import NASTY, harmless
from hypothesis import given
from hypothesis import strategies as st
from logs import examples

from syncagent.surface.cli.text import json_line, one_line, printable, shortened, when


@pytest.mark.parametrize(
    "text, shown",
    [
        ("plain naïve 日本 🙂\n\ttab", "plain naïve 日本 🙂\n\ttab"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b2J", "\\x9b2J"),
        ("a\rb", "a\\rb"),
        ("a\r\nb\r\n", "a\nb\n"),
        ("a\r\r\nb", "a\\r\nb"),
        ("\x07\x00\x08\x7f", "\\x07\\x00\\x08\\x7f"),
        ("\u202egpj.exe\u2069", "\\u202egpj.exe\\u2069"),
        ("half \ud83d", "half \\ud83d"),
    ],
)
def test_a_control_character_is_shown_as_its_escape(text, shown):
    assert printable(text) == shown


@examples()
@given(st.text())
def test_nothing_that_is_printable_can_do_anything(text):
    assert harmless(printable(text))
    assert harmless(one_line(text, 40))
    assert harmless(shortened(text, width=20, lines=2))
    printable(text).encode("utf-8")


@examples()
@given(st.text(), st.integers(2, 50))
def test_one_line_is_one_line_of_that_width(text, width):
    line = one_line(text, width)
    assert len(line) <= width
    assert "\n" not in line


def test_one_line_says_that_it_was_cut():
    assert one_line("a  b\n c", 10) == "a b c"
    assert one_line("x" * 20, 10) == "x" * 9 + "…"
    assert one_line(" " * 1000 + "x", 10) == "…"


def test_a_long_text_is_cut_and_says_how_much_is_missing():
    assert shortened("one\ntwo\n", lines=2) == "one\ntwo"
    assert shortened("one\ntwo\nthree", lines=2) == "one\ntwo\n… (6 more characters)"
    assert shortened("x" * 30, width=10) == "x" * 10 + "\n… (20 more characters)"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@examples(50)
@given(json_values, st.booleans())
def test_a_line_of_json_is_one_line_and_reads_back_equal(value, ascii_only):
    line = json_line(value, ascii_only=ascii_only)
    assert harmless(line)
    assert line.splitlines() == [line]
    assert json.loads(line) == value
    line.encode("ascii" if ascii_only else "utf-8")


def test_json_keeps_letters_readable():
    assert json_line({"text": "naïve"}) == '{"text": "naïve"}'
    assert harmless(json_line(NASTY))


def test_a_time_is_local_and_one_that_no_calendar_has_is_a_number(monkeypatch):
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert when(0) == "1970-01-01 00:00:00"
    monkeypatch.undo()
    time.tzset()
    assert when(10**30) == f"{10**30} ms"
