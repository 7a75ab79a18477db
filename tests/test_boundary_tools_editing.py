"""Writing and editing: what is replaced, what is kept, and what a model is told that has missed."""

import os
import threading
import time

import pytest
from file_parts import Files, everything, open_bytes, refused

from syncagent import Cancelled
from syncagent.boundary.tools import editing


@pytest.fixture
def files(tmp_path):
    return Files(tmp_path)


def edited(files, before, old, new, **values):
    (files.root / "a").write_bytes(before)
    files.edit("a", old, new, **values)
    return open_bytes(files.root / "a")


def test_a_file_is_written_with_its_folders(files, tmp_path):
    assert files.write("x/y/a.txt", "é\r\n") == "wrote 4 bytes to x/y/a.txt (new file)"
    assert files.write("x/y/a.txt", "") == "wrote 0 bytes to x/y/a.txt (it had 4)"
    assert everything(tmp_path) == {"x": None, "x/y": None, "x/y/a.txt": b""}
    assert "lone surrogate at character 1" in refused(files.write, "b", "a\ud800")


def test_a_piece_is_replaced_and_the_rest_is_kept(files):
    assert edited(files, b"one two three", "two", "2") == b"one 2 three"
    assert edited(files, b"one\ntwo", "two", "2") == b"one\n2"
    assert edited(files, "\ufeffäöü\n".encode(), "ö", "o") == "\ufeffäoü\n".encode()
    assert edited(files, b"gone", "gone", "") == b""


@pytest.mark.parametrize("old, new", [("b\nc", "x\ny\nz"), ("b\r\nc", "x\r\ny\r\nz")])
def test_line_ends_are_those_of_the_file(files, old, new):
    assert edited(files, b"a\r\nb\r\nc\r\nd", old, new) == b"a\r\nx\r\ny\r\nz\r\nd"


def test_in_a_file_of_both_line_ends_the_text_is_taken_as_it_is(files):
    assert edited(files, b"a\r\nb\nc\r\n", "b\nc", "x\ny") == b"a\r\nx\ny\r\n"
    assert edited(files, b"a\nb\n", "a\n", "a\r\n") == b"a\r\nb\n"


def test_a_text_that_is_there_more_than_once_is_refused_unless_all(files):
    before = b"x = 1\ny\nx = 1\nx = 1; x = 1\n"
    (files.root / "a").write_bytes(before)
    said = refused(files.edit, "a", "x = 1", "z")
    assert "is there 4 times, on lines 1, 3, 4." in said and "all=true" in said
    assert open_bytes(files.root / "a") == before
    assert edited(files, before, "x = 1", "z", all=True) == b"z\ny\nz\nz; z\n"
    assert edited(files, b"aaaaa", "aa", "b", all=True) == b"bba"


def test_a_text_that_is_not_there_is_told_with_where_its_beginning_is(files):
    (files.root / "a").write_text("def f():\n    return 1\n")
    said = refused(files.edit, "a", "def f():\n  return 1\n", "x")
    assert "isn't there" in said and "its first line is there on line 1" in said
    assert "first line" not in refused(files.edit, "a", "zzz", "x")


@pytest.mark.parametrize(
    "old, new, said",
    [("", "x", "'old' is empty"), ("a", "a", "the same"), ("a\ud800", "b", "lone surrogate")],
)
def test_what_makes_no_sense_is_refused(files, old, new, said):
    (files.root / "a").write_text("abc")
    assert said in refused(files.edit, "a", old, new)


def test_what_is_no_text_is_not_edited(files):
    for data in (b"a\0b", b"caf\xe9", b"x" * 10_000 + b"\xff"):
        (files.root / "a").write_bytes(data)
        assert f"of {len(data)} bytes: it is not edited" in refused(files.edit, "a", "a", "b")
        assert open_bytes(files.root / "a") == data


def test_what_is_too_large_before_or_after_is_not_edited(files, monkeypatch):
    monkeypatch.setattr(editing, "MAX_EDIT", 1000)
    (files.root / "a").write_bytes(b"x" * 1001)
    assert "it has 1001 bytes" in refused(files.edit, "a", "x", "y")
    (files.root / "a").write_bytes(b"x" * 100)
    assert "it would have 2000 bytes" in refused(files.edit, "a", "x", "y" * 20, all=True)


def test_what_is_there_too_often_is_not_edited(files, monkeypatch):
    monkeypatch.setattr(editing, "MAX_PLACES", 3)
    assert edited(files, b"xxx", "x", "y", all=True) == b"yyy"
    (files.root / "a").write_bytes(b"xxxx")
    assert "more than 3 times" in refused(files.edit, "a", "x", "y", all=True)


def test_line_ends_on_the_border_of_two_pieces_are_counted_once(files, monkeypatch):
    monkeypatch.setattr(editing, "PIECE", 4)
    for fill in range(9):
        before = b"x" * fill + b"\r\nab\r\n"
        assert edited(files, before, "ab\n", "c\nd\n") == b"x" * fill + b"\r\nc\r\nd\r\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_a_read_only_file_is_not_replaced(files):
    (files.root / "a").write_text("x")
    os.chmod(files.root / "a", 0o444)
    assert "read-only" in refused(files.write, "a", "y")
    assert "read-only" in refused(files.edit, "a", "x", "y")


@pytest.mark.parametrize("size", [editing.PIECE - 3, editing.PIECE, editing.PIECE + 400])
def test_a_text_across_two_pieces_of_the_search_is_found(files, size):
    text = "needle" * 100
    assert edited(files, b"x" * size + text.encode() + b"y", text, "!") == b"x" * size + b"!y"


@pytest.mark.concurrent
def test_a_search_that_would_take_hours_is_stopped_at_once(files):
    """All of it looks like the beginning of what is looked for."""
    (files.root / "a").write_bytes(b"a" * (3 << 20))
    ended = []

    def cancel():
        ended.append(time.monotonic())
        files.token.cancel()

    timer = threading.Timer(0.3, cancel)
    timer.start()
    with pytest.raises(Cancelled):
        files.edit("a", "a" * (1 << 20) + "b", "x")
    took = time.monotonic() - ended[0]
    timer.join()
    assert took < 1.0
    assert list(everything(files.root)) == ["a"]
